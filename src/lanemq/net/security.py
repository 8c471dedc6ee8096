"""How a client protects its connections: TLS, signed requests, both or neither.

The broker's certificate and host name are checked unless an option switches the check off, because an encrypted
connection to an unknown peer protects nothing. Certificate files are read again for every connection, so a renewed
certificate needs no restart. OpenSSL's errors say what went wrong; the functions at the end also say what to do.
"""

import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from types import NoneType
from typing import TypeAlias

from lanemq.model.checks import check_flag, check_kind
from lanemq.model.errors import InvalidOption
from lanemq.net.address import Address
from lanemq.wire.command import Command, encode_command
from lanemq.wire.signing import Credentials, sign

File: TypeAlias = str | PathLike[str]


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How a client speaks TLS. Made without arguments it trusts the system's certificate authorities."""

    ca: File | None = None
    """PEM file of the authorities that may have signed the broker's certificate; None: the system's. With a wrong
    file every broker is refused; every authority in it is trusted."""
    cert: File | None = None
    """PEM file of the client's certificate and its chain, for brokers that ask for one."""
    key: File | None = None
    """PEM file of the certificate's private key, not encrypted; None: it is in the file of the certificate."""
    verify_host: bool = True
    """Whether the broker's certificate must be for the host that was connected to. Off: any broker with a
    certificate of a trusted authority may pretend to be any other."""
    insecure_skip_verify: bool = False
    """Accepts every certificate. Only for experiments: anyone on the network can intercept the connection."""

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            check_kind(name, getattr(self, name), (str, PathLike, NoneType), "the path of a file, or None")
        for name in ("verify_host", "insecure_skip_verify"):
            check_flag(name, getattr(self, name))
        if self.key is not None and self.cert is None:
            raise InvalidOption(f"tls key {fspath(self.key)}: there is no tls cert it could belong to; give both")
        client_context(self)  # invalid files are reported here, not by the first connection


def client_context(options: TlsOptions) -> ssl.SSLContext:
    """Builds the SSL context; raises `InvalidOption` naming the file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.check_hostname = options.verify_host and not options.insecure_skip_verify
    if options.insecure_skip_verify:
        context.verify_mode = ssl.CERT_NONE
    elif options.ca is not None:
        load_authorities(context, options.ca, "tls ca")
    else:
        context.load_default_certs()
    if options.cert is not None:
        load_certificate(context, options.cert, options.key, "tls cert")
    return context


def load_authorities(context: ssl.SSLContext, ca: File, name: str) -> None:
    """Trusts certificates of these authorities."""
    try:
        context.load_verify_locations(cafile=fspath(ca))
    except ssl.SSLError as error:
        raise InvalidOption(f"{name} {fspath(ca)}: holds no certificate in PEM format ({error.reason})") from None
    except OSError as error:
        raise InvalidOption(f"{name} {fspath(ca)}: cannot be read: {error.strerror}") from None


def load_certificate(context: ssl.SSLContext, cert: File, key: File | None, name: str) -> None:
    """Loads our own certificate and key."""
    files = fspath(cert) if key is None else f"{fspath(cert)} with key {fspath(key)}"
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        why = error.reason or str(error)
        raise InvalidOption(
            f"{name} {files}: no certificate with its private key, both in PEM format and not encrypted ({why})"
        ) from None
    except OSError as error:
        raise InvalidOption(f"{name} {files}: cannot be read: {error.strerror}") from None


def key_problem(cert: File, key: File | None) -> str | None:
    """What is wrong if every user of the machine may read a private key, which is in `cert` if `key` is None."""
    path = Path(cert if key is None else key)
    try:
        if path.stat().st_mode & stat.S_IROTH:
            return f"{path} holds a private key, and every user of this machine can read it: chmod 600 {path}"
    except OSError:
        pass  # whoever loads it says so
    return None


def _no_password() -> str:
    """Without this, OpenSSL would ask for the password of an encrypted key on the terminal and block a service."""
    return ""


@dataclass(frozen=True, slots=True)
class Security:
    """TLS and credentials for every connection of one client, to name servers and brokers."""

    tls: TlsOptions | None = None
    credentials: Credentials | None = None


OPEN = Security()
"""Neither encrypted nor signed."""


def request_encoder(security: Security) -> Callable[[Command], bytes]:
    """The function that encodes requests: signed if there are credentials."""
    if security.credentials is None:
        return encode_command
    return partial(_encode_signed, security.credentials)


def _encode_signed(credentials: Credentials, command: Command) -> bytes:
    sign(command, credentials)
    return encode_command(command)


_WRONG_HOST = frozenset({62, 64})
_UNKNOWN_ISSUER = frozenset({2, 18, 19, 20, 21})
_NOT_YET, _EXPIRED = 9, 10
"""OpenSSL's X509_V_ERR codes."""

_REFUSALS = {
    "CERTIFICATE_REQUIRED": "it wants a certificate of ours: give tls cert and tls key",
    "HANDSHAKE_FAILURE": "it may want a certificate of ours (tls cert and tls key), or no cipher is common to both",
    "UNKNOWN_CA": "it does not know the authority that signed our certificate: that one must be in its --tls-client-ca",
    "BAD_CERTIFICATE": "it does not accept our certificate: it must be signed by an authority in its --tls-client-ca",
    "CERTIFICATE_EXPIRED": "our certificate (tls cert) has expired: renew it",
    "PROTOCOL_VERSION": "it speaks only a TLS older than 1.2, which is not safe any more",
}
"""What to do about the peer's alert, by the end of the alert's name."""


def handshake_trouble(error: OSError, address: Address, tls: TlsOptions) -> str:
    """Why the TLS handshake failed, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verification(error, address, tls)
    refusal = alert(error)
    if refusal is not None:
        return refusal
    return f"it ended the handshake ({_reason(error)}): does a broker with TLS listen there? It may be a plain one"


def closed_early_hint(security: Security) -> str:
    """A hint for a connection that ended before the peer sent anything: many brokers just close it."""
    if security.tls is None:
        return ", and it sent nothing: it hangs, is not a broker, or takes nothing but TLS (then connect with tls)"
    if security.tls.cert is None:
        return ", and it sent nothing: it may want a certificate of ours, give tls cert and tls key"
    return (
        ", and it sent nothing: it may not accept our certificate, "
        "whose authority must be in the broker's --tls-client-ca"
    )


def alert(error: BaseException | None) -> str | None:
    """What the peer's alert asks for; None without an alert."""
    if not isinstance(error, ssl.SSLError) or "ALERT" not in (error.reason or ""):
        return None
    return next((hint for end, hint in _REFUSALS.items() if error.reason.endswith(end)), None)


def _verification(error: ssl.SSLCertVerificationError, address: Address, tls: TlsOptions) -> str:
    code = error.verify_code
    if code in _WRONG_HOST:
        return (
            f"its certificate is not for {address.host}: use an address the certificate names (a LaneMQ broker tells "
            f"clients the one of --advertise), or give the broker a certificate for {address.host}"
        )
    if code in _UNKNOWN_ISSUER:
        trusted = "the system's authorities" if tls.ca is None else f"an authority in {fspath(tls.ca)}"
        return f"its certificate is not signed by {trusted}: tls ca must name the file of the one that signed it"
    if code == _EXPIRED:
        return "its certificate has expired: renew it at the broker"
    if code == _NOT_YET:
        return "its certificate is not valid yet: compare the clocks of both machines"
    return f"its certificate is refused: {error.verify_message}"


def _reason(error: OSError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error) or type(error).__name__
