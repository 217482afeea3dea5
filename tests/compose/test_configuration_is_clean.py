"""What Compose makes of the files."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from tests.compose.docker_engine import ROOT, DockerEngine

pytestmark = pytest.mark.compose

GIB = 1024**3
FILES = {"one server": ["compose.yaml"], "cluster": ["compose.yaml", "compose.cluster.yaml"]}


@pytest.fixture(params=FILES.values(), ids=FILES.keys())
def project(request: pytest.FixtureRequest, engine: DockerEngine) -> dict[str, Any]:
    """The whole configuration, all profiles included; Compose must have nothing to say about it."""
    files = [word for file in request.param for word in ("--file", file)]
    command = [*engine.compose, "--env-file", os.devnull, *files, "--profile", "*", "config", "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_ports_are_published_on_this_machine_alone(project: dict[str, Any]) -> None:
    ports = [port for service in project["services"].values() for port in service.get("ports", [])]
    assert ports
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}


def test_volumes_have_names(project: dict[str, Any]) -> None:
    for name, service in project["services"].items():
        for volume in service.get("volumes", []):
            assert volume["type"] in ("bind", "volume"), name
            assert volume.get("source"), name


def test_services_are_bounded_and_confined(project: dict[str, Any]) -> None:
    for name, service in project["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name
        assert name.endswith("-gpu") or int(service["mem_limit"]) > 0, name


def test_three_generators_and_all_the_rest_fit_into_16_gib(project: dict[str, Any]) -> None:
    counts = {name: 1 for name in project["services"] if not name.endswith("-gpu")} | {"generator": 3}
    assert sum(counts[name] * int(project["services"][name]["mem_limit"]) for name in counts) <= 16 * GIB


def test_every_role_is_watched_and_started_again(project: dict[str, Any]) -> None:
    for name in ("dispatcher", "generator", "trainer", "generator-gpu", "trainer-gpu"):
        service = project["services"][name]
        assert service["healthcheck"]["test"][-1] == "headrace.heartbeat"
        assert service["restart"] == "unless-stopped"
        assert "--stay" in service["command"]
        assert service["init"] is True
        assert service.get("read_only", False) is not name.startswith("generator")
