"""A short run on a server with the configuration that ships: every role with its own key, over TLS, weights in NATS."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trustme

from bus import BusRole
from headrace.roles import UNREACHABLE
from tests.end_to_end.conftest import CONFIG, ROOT, STAND_IN
from tests.real_server import RealServer

RUN, STEPS = "whole", 3
SETS = (f"run.steps={STEPS}", "trainer.groups_per_step=2", "weights.store=jetstream", "weights.max_gib=1")

pytestmark = pytest.mark.timeout(300)


class Encrypted:
    """Commands of roles, each with nothing but its own key and the authority."""

    def __init__(self, server: RealServer, config: Path, folder: Path) -> None:
        self.server = server
        self._config, self._folder = config, folder
        self._processes: list[subprocess.Popen[str]] = []

    def begin(self, role: BusRole, *words: str, ca: Path | None = None) -> subprocess.Popen[str]:
        """``headrace`` with ``words``; CONFIG among them is the run's, with what this test sets."""
        sets = [part for each in SETS for part in ("--set", each)]
        line = [part for word in words for part in ([str(self._config), *sets] if word == "CONFIG" else [word])]
        environment = {
            "HEADRACE_NATS_URL": self.url,
            "HEADRACE_NATS_NKEY": str(self.server.folder / role / "nkey"),
            "HEADRACE_NATS_CA": str(ca or self.server.folder / "ca.pem"),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", *line, "--dir", str(self._folder / role)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment,
        )  # fmt: skip
        self._processes.append(process)
        return process

    @property
    def url(self) -> str:
        return f"tls://localhost:{self.server.port}"

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        self.server.kill()


def output_of(process: subprocess.Popen[str]) -> str:
    """What it printed when it has ended. Raises AssertionError where it failed."""
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return out


@pytest.fixture
def encrypted(tmp_path: Path, model: Path) -> Iterator[Encrypted]:
    authority = trustme.CA()
    keys = tmp_path / "keys"
    (keys / "server").mkdir(parents=True)
    certificate = authority.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(str(keys / "server" / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(keys / "server" / "cert.pem"))
    authority.cert_pem.write_to_path(str(keys / "ca.pem"))
    config = tmp_path / "config.toml"
    config.write_text(CONFIG.format(model=model, engine=STAND_IN, generators=1))
    server = RealServer(keys, [RUN], config="tls.conf").start()
    run = Encrypted(server, config, tmp_path / "runs")
    yield run
    run.kill()


def test_whole_run_with_keys_over_tls_and_weights_in_nats(encrypted: Encrypted) -> None:
    output_of(encrypted.begin("topology", "topology", "apply", "CONFIG"))
    dispatcher = encrypted.begin("dispatcher", "dispatch", "CONFIG")
    trainer = encrypted.begin("trainer", "train", "CONFIG")
    generator = encrypted.begin("generator", "generate", "--run", RUN)
    for role in (trainer, dispatcher, generator):
        output_of(role)
    status = encrypted.begin("reader", "status", RUN, "--server", encrypted.url, "--json")
    assert msgspec.json.decode(output_of(status))["step"] == STEPS


def test_role_refuses_a_server_of_another_authority_in_clear_words(encrypted: Encrypted, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    role = encrypted.begin("dispatcher", "dispatch", "CONFIG", ca=tmp_path / "other.pem")
    _, err = role.communicate(timeout=60)
    assert role.returncode == UNREACHABLE
    assert f"its certificate is not signed by the authority in {tmp_path / 'other.pem'}" in err
    assert "Traceback" not in err
