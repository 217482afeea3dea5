"""Connecting with keys and TLS, and what is said when that cannot be."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trustme

from bus import Address, EmbeddedServer, connect
from bus.seed import new_seed
from bus.transport import PiecewiseTransport
from schemas import ConfigError, HeadraceError, PublishFailed, ServerUnreachable
from tests import examples
from tests.real_server import RealServer, free_ports

from .conftest import until

RUN = "mine"
SOON_S = 30.0


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    server = RealServer(tmp_path_factory.mktemp("plain") / "keys", [RUN]).start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[RealServer]:
    """With TLS; its certificate is for localhost, by name alone."""
    folder = tmp_path_factory.mktemp("tls") / "keys"
    certify(folder, authority)
    server = RealServer(folder, [RUN], config="tls.conf").start()
    yield server
    server.kill()


def certify(folder: Path, authority: trustme.CA) -> None:
    certificate = authority.issue_cert("localhost")
    (folder / "server").mkdir(parents=True)
    certificate.private_key_pem.write_to_path(str(folder / "server" / "key.pem"))
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(str(folder / "server" / "cert.pem"), append=True)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))


def by_tls(server: RealServer, *, host: str = "localhost", ca: Path | None = None) -> Address:
    return msgspec.structs.replace(
        server.address("reader"), url=f"tls://{host}:{server.port}", ca=ca or server.folder / "ca.pem"
    )


async def refused(address: Address) -> HeadraceError:
    """The error with which connecting ends, soon and although there would be a minute."""
    began = time.monotonic()
    with pytest.raises(HeadraceError) as caught:
        await connect(address, run=RUN, role="reader", id="r", timeout_s=60)
    assert time.monotonic() - began < SOON_S
    assert "\n" not in str(caught.value)
    return caught.value


async def test_role_connects_with_its_key(real: RealServer) -> None:
    bus = await connect(real.address("reader"), run=RUN, role="reader", id="r")
    assert bus.connected
    await bus.close()


async def test_role_connects_with_its_key_over_tls(encrypted: RealServer) -> None:
    bus = await connect(by_tls(encrypted), run=RUN, role="reader", id="r")
    transport = bus.wire._client._transport
    assert isinstance(transport, PiecewiseTransport)
    assert transport.connection.get_extra_info("ssl_object").version() == "TLSv1.3"
    await bus.close()


async def test_missing_seed_is_named_with_its_remedy(real: RealServer, tmp_path: Path) -> None:
    error = await refused(Address(real.address("reader").url, nkey=tmp_path / "nkey"))
    assert isinstance(error, ConfigError)
    assert f"the key {tmp_path / 'nkey'} cannot be read: No such file or directory" in str(error)
    assert "headrace keys new DIR --run NAME" in str(error)


async def test_unreadable_seed_is_named(real: RealServer, tmp_path: Path) -> None:
    (tmp_path / "nkey").mkdir()
    error = await refused(Address(real.address("reader").url, nkey=tmp_path / "nkey"))
    assert f"the key {tmp_path / 'nkey'} cannot be read: Is a directory" in str(error)


async def test_something_else_than_a_seed_is_named(real: RealServer, tmp_path: Path) -> None:
    (tmp_path / "nkey").write_text("hunter2")
    error = await refused(Address(real.address("reader").url, nkey=tmp_path / "nkey"))
    assert isinstance(error, ConfigError)
    assert f"the key {tmp_path / 'nkey'} is not the seed of a user" in str(error)
    assert "hunter2" not in str(error)


async def test_key_that_the_server_does_not_know_is_refused_at_once(real: RealServer, tmp_path: Path) -> None:
    (tmp_path / "nkey").write_text(new_seed())
    error = await refused(Address(real.address("reader").url, nkey=tmp_path / "nkey"))
    assert isinstance(error, ServerUnreachable)
    assert f"the NATS server at 127.0.0.1:{real.port} cannot be used as the owner of key {tmp_path}" in str(error)
    assert "Authorization Violation" in str(error)
    assert "is none of its users: give it the users.conf that `headrace keys new` wrote" in str(error)


async def test_nobody_is_refused_at_once(real: RealServer) -> None:
    error = await refused(Address(real.address("reader").url))
    assert "cannot be used as nobody" in str(error)
    assert "give a key in HEADRACE_NATS_NKEY" in str(error)


async def test_key_and_user_at_once_are_refused(real: RealServer) -> None:
    error = await refused(msgspec.structs.replace(real.address("reader"), user="reader", password="x"))
    assert "both user reader and the key" in str(error)


async def test_other_roles_key_is_told_apart(real: RealServer) -> None:
    error = await refused(real.address("trainer"))
    assert "role reader may not listen to answers, _INBOX.reader.>" in str(error)
    assert "these are another role's credentials" in str(error)


async def test_unknown_authority_is_refused_at_once(encrypted: RealServer, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    error = await refused(by_tls(encrypted, ca=tmp_path / "other.pem"))
    assert isinstance(error, ServerUnreachable)
    assert f"its certificate is not signed by the authority in {tmp_path / 'other.pem'}" in str(error)
    assert "HEADRACE_NATS_CA" in str(error)


async def test_authority_that_the_system_does_not_trust_is_refused_at_once(encrypted: RealServer) -> None:
    error = await refused(msgspec.structs.replace(by_tls(encrypted), ca=None))
    assert "its certificate is not signed by an authority that this system trusts" in str(error)


async def test_certificate_of_another_host_is_refused_at_once(encrypted: RealServer) -> None:
    error = await refused(by_tls(encrypted, host="127.0.0.1"))
    assert f"at 127.0.0.1:{encrypted.port} cannot be used" in str(error)
    assert "its certificate is for another host (IP address mismatch" in str(error)
    assert "give the address by a name that is in the certificate" in str(error)


async def test_certificate_out_of_date_is_refused_at_once(tmp_path: Path, authority: trustme.CA) -> None:
    folder = tmp_path / "keys"
    certify(folder, authority)
    past = authority.issue_cert("localhost", not_after=datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC))
    past.private_key_and_cert_chain_pem.write_to_path(str(folder / "server" / "cert.pem"))
    past.private_key_pem.write_to_path(str(folder / "server" / "key.pem"))
    server = RealServer(folder, [RUN], config="tls.conf").start()
    try:
        assert "its certificate is out of date (certificate has expired): renew it" in str(
            await refused(by_tls(server))
        )
    finally:
        server.kill()


async def test_server_without_tls_gets_nothing_from_a_client_that_wants_it(
    real: RealServer, encrypted: RealServer
) -> None:
    address = msgspec.structs.replace(by_tls(encrypted), url=f"tls://localhost:{real.port}")
    error = await refused(address)
    assert f"the NATS server at localhost:{real.port}" in str(error)
    assert "it offers no TLS, and the address says tls://" in str(error)


async def test_server_with_tls_is_not_used_without(encrypted: RealServer) -> None:
    error = await refused(encrypted.address("reader"))
    assert "it wants TLS, and the address does not: write tls:// instead of nats://" in str(error)


@pytest.mark.parametrize(
    ("content", "fault"), [(None, "cannot be read: No such file"), ("not a certificate", "holds no certificate")]
)
async def test_authority_that_is_none_is_named(
    encrypted: RealServer, tmp_path: Path, content: str | None, fault: str
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    error = await refused(by_tls(encrypted, ca=file))
    assert isinstance(error, ConfigError)
    assert f"the authority {file} {fault}" in str(error)


async def test_authority_without_tls_is_refused(encrypted: RealServer) -> None:
    error = await refused(msgspec.structs.replace(encrypted.address("reader"), ca=encrypted.folder / "ca.pem"))
    assert "is for TLS, and the address is nats://" in str(error)


async def test_servers_with_and_without_tls_are_refused_together() -> None:
    error = await refused(Address("tls://one:4222,nats://two:4222"))
    assert "has servers with TLS and others without" in str(error)


async def test_second_server_is_taken_where_the_first_is_away(real: RealServer) -> None:
    for away in free_ports(3):  # nats-py tries them in an order of its own
        url = f"nats://127.0.0.1:{away}, nats://127.0.0.1:{real.port}"
        bus = await connect(msgspec.structs.replace(real.address("reader"), url=url), run=RUN, role="reader", id="r")
        await bus.close()


async def test_second_server_is_taken_where_the_first_refuses_us(real: RealServer, server: EmbeddedServer) -> None:
    for _ in range(3):
        url = f"{server.url},{real.address('reader').url}"
        bus = await connect(msgspec.structs.replace(real.address("reader"), url=url), run=RUN, role="reader", id="r")
        await bus.close()


async def test_refusal_by_one_of_several_servers_is_final_soon(real: RealServer, tmp_path: Path) -> None:
    (tmp_path / "nkey").write_text(new_seed())
    [away] = free_ports(1)
    url = f"nats://127.0.0.1:{away},{real.address('reader').url}"
    assert "is none of its users" in str(await refused(Address(url, nkey=tmp_path / "nkey")))


async def test_no_secret_is_in_the_address_as_shown(real: RealServer) -> None:
    address = real.address("trainer")
    assert address.nkey is not None
    assert address.nkey.read_text() not in repr(address)
    assert address.role == "trainer"


async def test_key_that_is_taken_away_is_told_once_and_works_again_when_it_is_given_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = RealServer(tmp_path / "keys", [RUN]).start()
    bus = await connect(server.address("operator"), run=RUN, role="operator", id="o")
    nkey, aside = tmp_path / "keys" / "operator" / "nkey", tmp_path / "aside"
    nkey.rename(aside)
    server.make_keys([RUN])
    await until(lambda: "is none of its users" in caplog.text)
    with pytest.raises(PublishFailed, match=r"no connection to .* \(nats: 'Authorization Violation'\)"):
        await bus.publish(examples.control(run=RUN), deadline_s=0.5)
    assert caplog.text.count("is none of its users") == 1
    aside.replace(nkey)
    server.make_keys([RUN])
    await until(lambda: bus.connected)
    await bus.close()
    server.kill()
