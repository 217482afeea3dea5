"""How a connection begins: the key or password that it is made with, encrypted or not, and what a refusal means.

nats-py alone does what the server asks for: it would send a password unencrypted to one that has no TLS although the
address says tls://, and it would take what the system trusts for one that has TLS although the address does not.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import nats.errors

from schemas import ConfigError

from .address import TLS, Address
from .client import Client
from .seed import read_seed

_OTHER_HOST, _DATES = (62, 64), (9, 10)
"""X509_V_ERR_HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH; _CERT_NOT_YET_VALID and _CERT_HAS_EXPIRED."""


class TlsMismatch(nats.errors.Error):
    """One side wants TLS and the other does not."""


class Dialer(Client):
    """nats-py's client, which goes on with no server that wants TLS where the address does not, or the other way."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        self._address = address

    def credentials(self) -> dict[str, Any]:
        """What ``connect`` is given: servers, who we are, whom we trust.

        Raises ConfigError where the address contradicts itself, or a file that it names is missing, not ours to
        read, or not what it should be.
        """
        address = self._address
        if len({server.startswith(TLS) for server in address.servers}) > 1:
            raise ConfigError(f"{address.url} has servers with TLS and others without: write tls:// or nats:// for all")
        options: dict[str, Any] = {"servers": address.servers, "user": address.user, "password": address.password}
        if address.nkey is not None:
            if address.user is not None:
                raise ConfigError(f"both user {address.user} and the key {address.nkey} are given: give one of them")
            options["nkeys_seed_str"] = read_seed(address.nkey)
        if address.tls:
            options["tls"] = _trusted(address.ca)
        elif address.ca is not None:
            raise ConfigError(f"the authority {address.ca} is for TLS, and the address is {address.url}: write tls://")
        return options

    async def _connect_to_server(self, s: Any) -> None:
        if self._transport is not None:
            # nats-py leaves the socket of an attempt that was refused open when it makes the next one.
            self._transport.close()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # It is the first thing that a server says, and nothing was sent to it yet.
        if initial_connection:
            if self._address.tls and info.get("tls_available"):
                info["tls_required"] = True  # nats-py then uses what the server only offers.
            if self._address.tls and not info.get("tls_required"):
                raise TlsMismatch(
                    "it offers no TLS, and the address says tls://: start it with TLS (see deploy/tls.conf), "
                    "or write nats:// where the network can be trusted"
                )
            if info.get("tls_required") and not self._address.tls:
                raise TlsMismatch(
                    "it wants TLS, and the address does not: write tls:// instead of nats://, "
                    "and name its authority in HEADRACE_NATS_CA"
                )
        await super()._process_info(info, initial_connection)

    def refusal(self, error: Exception) -> str | None:
        """Why a server that was reached will never take us, with the remedy; None where trying again may help."""
        if "authorization violation" in str(error).lower():
            reason = f"it refuses us: {error}: {self._who_would_be_taken()}"
        elif isinstance(error, TlsMismatch):
            reason = str(error)
        elif isinstance(error, ssl.SSLCertVerificationError):
            reason = self._distrust(error)
        else:
            return None
        server = self._current_server
        where = f"{server.uri.hostname}:{server.uri.port}" if server else self._address.url
        return f"the NATS server at {where} cannot be used as {self._address.identity}: {reason}"

    def _who_would_be_taken(self) -> str:
        address = self._address
        if address.nkey is not None:
            return (
                f"{self._public_nkey}, the public half of the key, is none of its users: give it the users.conf that "
                "`headrace keys new` wrote with this key, and have it read that anew (SIGHUP)"
            )
        if address.user is not None:
            return "check user and password"
        return "give a key in HEADRACE_NATS_NKEY, or HEADRACE_NATS_USER and HEADRACE_NATS_PASSWORD"

    def _distrust(self, error: ssl.SSLCertVerificationError) -> str:
        if error.verify_code in _OTHER_HOST:
            return (
                f"its certificate is for another host ({error.verify_message}): "
                "give the address by a name that is in the certificate, or make one for this name"
            )
        if error.verify_code in _DATES:
            return f"its certificate is out of date ({error.verify_message}): renew it"
        ca = self._address.ca
        whom = "an authority that this system trusts" if ca is None else f"the authority in {ca}"
        return (
            f"its certificate is not signed by {whom} ({error.verify_message}): "
            "name the file of the one that signed it in HEADRACE_NATS_CA"
        )


def _trusted(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        fault = "holds no certificate (a PEM file, with a line BEGIN CERTIFICATE)"
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    raise ConfigError(f"the authority {ca} {fault}: give the file of who signed the server's certificate")
