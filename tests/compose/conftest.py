"""The image, built once for all of these tests, and the Compose projects that they start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.docker_engine import DockerEngine, find_engine
from tests.compose.project import Project


@pytest.fixture(scope="session")
def engine() -> DockerEngine:
    return find_engine()


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compose")


@pytest.fixture(scope="session")
def image(engine: DockerEngine, keys: Path) -> DockerEngine:
    """The engine, with the image of this checkout."""
    project = Project(engine, "headrace-build", keys / "build")
    project.say("building the image; a first build takes minutes")
    project.compose("build", "keys")
    project.say("the image is built")
    return engine


@pytest.fixture(scope="module")
def one_server(image: DockerEngine, keys: Path) -> Iterator[Project]:
    project = Project(image, "headrace-one", keys / "one")
    project.remove()
    yield project
    project.remove()


@pytest.fixture(scope="module")
def cluster(image: DockerEngine, keys: Path) -> Iterator[Project]:
    project = Project(image, "headrace-three", keys / "three", ("compose.yaml", "compose.cluster.yaml"))
    project.remove()
    yield project
    project.remove()
