"""The commands in docs/operations.md that make an authority and a certificate are run, and what they make is used."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from bus import Address, connect
from tests.real_server import DEPLOY, RealServer

DOCS = DEPLOY.parent / "docs" / "operations.md"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The folder in which the commands were typed."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl program is not installed")
    (block,) = re.findall(r"^```sh\n(openssl .*?)^```$", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "deploy" / "keys" / "server").mkdir(parents=True)
    subprocess.run(["bash", "-e", "-c", block], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


async def test_certificate_that_the_documentation_makes_is_taken(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As Python does from 3.13 on.
    strict = ssl.create_default_context(cafile=made / "ca.pem")
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    monkeypatch.setattr("ssl.create_default_context", lambda cafile: strict)
    keys = made / "deploy" / "keys"
    server = RealServer(keys, ["demo"], config="tls.conf").start()
    try:
        for host in ("localhost", "127.0.0.1"):
            address = Address(f"tls://{host}:{server.port}", nkey=keys / "reader" / "nkey", ca=made / "ca.pem")
            await (await connect(address, run="demo", role="reader", id="r")).close()
    finally:
        server.kill()
