"""The Docker engine that these tests use: this machine's own, or one without a registry beside the checkout."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = ROOT.parent / "shared" / "rig" / "docker-offline"
BASE_IMAGES = ("python:3.11-slim-bookworm", "nats:2.15-alpine")
"""What the offline engine has stand-ins for."""


class DockerEngine(msgspec.Struct, frozen=True):
    """How ``docker`` and ``docker compose`` are called."""

    docker: Sequence[str]
    compose: Sequence[str]

    def run(self, *arguments: str) -> str:
        """What ``docker`` prints. Raises CalledProcessError."""
        return call([*self.docker, *arguments])

    def logs(self, container: str) -> str:
        """All that it said: roles log to standard error."""
        command = [*self.docker, "logs", container]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout


def call(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Standard output of a command; what it says besides is shown where it fails."""
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}"
    return done.stdout


def find_engine() -> DockerEngine:
    """An engine that answers. Fails the test, naming what is missing, where there is none."""
    if _answers("docker", "info") and _answers("docker", "compose", "version"):
        return DockerEngine(["docker"], ["docker", "compose"])
    if OFFLINE.exists():
        call([str(OFFLINE), "start"])
        call([str(OFFLINE), "base", *BASE_IMAGES])
        return DockerEngine([str(OFFLINE), "docker"], [str(OFFLINE), "compose"])
    pytest.fail(
        "no Docker engine answers: start one (`docker info` must succeed for this user), "
        "with the Compose plugin (`docker compose version`)"
    )


def _answers(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
