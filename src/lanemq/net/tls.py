"""TLS on the calling side: which certificates are trusted, and which one is shown.

The rule guarded here: an encrypted connection to nobody in particular protects nothing, so the broker's certificate
and host name are checked unless somebody asked, in so many words, that they are not. Files are read again for every
connection: a renewed certificate needs no restart.
"""

import ssl
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TypeAlias

from lanemq.model.errors import InvalidOption

File: TypeAlias = str | PathLike[str]


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How a client speaks TLS. Made without arguments it trusts the system's certificate authorities."""

    ca: File | None = None
    """PEM file of the authorities that may have signed the broker's certificate; None: the system's. A wrong one
    refuses every broker, one too many trusts whoever it signs."""
    cert: File | None = None
    """PEM file of our own certificate and its chain, for brokers that ask for one."""
    key: File | None = None
    """PEM file of the certificate's private key, not encrypted; None: it is in the file of the certificate."""
    verify_host: bool = True
    """Whether the broker's certificate must be for the host that was connected to. Off: any broker with a
    certificate of a trusted authority may pretend to be any other."""
    insecure_skip_verify: bool = False
    """Accepts every certificate. Only for experiments: whoever can reach the network can be in the middle."""

    def __post_init__(self) -> None:
        if self.key is not None and self.cert is None:
            raise InvalidOption(f"tls key {fspath(self.key)}: there is no tls cert it could belong to; give both")
        client_context(self)  # what is wrong with the files is told here, and not by the first connection


def client_context(options: TlsOptions) -> ssl.SSLContext:
    """What the ssl module needs, or `InvalidOption` naming the file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.check_hostname = options.verify_host and not options.insecure_skip_verify
    if options.insecure_skip_verify:
        context.verify_mode = ssl.CERT_NONE
    elif options.ca is not None:
        trust(context, options.ca, "tls ca")
    else:
        context.load_default_certs()
    if options.cert is not None:
        show(context, options.cert, options.key, "tls cert")
    return context


def trust(context: ssl.SSLContext, ca: File, name: str) -> None:
    """Lets certificates of these authorities pass."""
    try:
        context.load_verify_locations(cafile=fspath(ca))
    except ssl.SSLError as error:
        raise InvalidOption(f"{name} {fspath(ca)}: holds no certificate in PEM format ({error.reason})") from None
    except OSError as error:
        raise InvalidOption(f"{name} {fspath(ca)}: cannot be read: {error.strerror}") from None


def show(context: ssl.SSLContext, cert: File, key: File | None, name: str) -> None:
    """Lets us prove who we are."""
    files = fspath(cert) if key is None else f"{fspath(cert)} with key {fspath(key)}"
    try:
        context.load_cert_chain(cert, key, password=_nobody_to_ask)
    except ssl.SSLError as error:
        why = error.reason or str(error)
        raise InvalidOption(
            f"{name} {files}: no certificate with its private key, both in PEM format and not encrypted ({why})"
        ) from None
    except OSError as error:
        raise InvalidOption(f"{name} {files}: cannot be read: {error.strerror}") from None


def _nobody_to_ask() -> str:
    """An encrypted key would make OpenSSL ask on the terminal, and a service wait for ever."""
    return ""
