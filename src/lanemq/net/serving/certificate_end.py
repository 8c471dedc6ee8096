"""When a server's certificate expires: an expired one shuts out every client, and nothing fails before that.

Python's ssl module gives the dates of a certificate only after a handshake has verified it. So this module makes a
handshake in memory: a server presents the certificate, and a client that trusts it reads its end.
"""

import contextlib
import ssl
from collections.abc import Mapping
from os import PathLike

from lanemq.clock import time_text, wall_time
from lanemq.model.units import Millis, to_millis
from lanemq.net.security import load_certificate

EXPIRED = Millis(0)
"""The end of a certificate that has ended already."""
SOON_MS = 14 * 24 * 3_600_000
"""How long before its end an operator should know: enough to renew it on a working day."""

RENEW = "renew it; a running broker reads the new file by itself"

_HAS_EXPIRED = 10
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED."""
_FLIGHTS = 4
"""More messages than the client and the server of a handshake send."""


def certificate_end(cert: str | PathLike[str], key: str | PathLike[str] | None = None) -> Millis | None:
    """When the certificate ends, in milliseconds since 1970; `EXPIRED` if it has, None if it cannot be told.

    Raises `InvalidOption` if the files hold no certificate with its key.
    """
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(serving, cert, key, "tls cert")
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is trusted, not who signed it
    try:
        asking.load_verify_locations(cafile=cert)
        shown = _shown(serving, asking)
        return None if shown is None else to_millis(ssl.cert_time_to_seconds(str(shown["notAfter"])))
    except ssl.SSLCertVerificationError as error:
        return EXPIRED if error.verify_code == _HAS_EXPIRED else None
    except (OSError, KeyError, ValueError):
        return None


def end_problem(end: Millis | None, *, now: int) -> str | None:
    """Why an operator should look at a certificate that ends at this time; None if it is valid for long enough."""
    if end is None or end > now + SOON_MS:
        return None
    if end <= now:
        return f"the certificate has expired, and clients refuse it: {RENEW}"
    return f"the certificate expires {time_text(wall_time(end))}, then clients refuse it: {RENEW}"


def _shown(serving: ssl.SSLContext, asking: ssl.SSLContext) -> Mapping[str, object] | None:
    """The server's certificate as the client sees it after a handshake; None if the handshake does not end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(to_client, to_server)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_FLIGHTS):
        try:
            client.do_handshake()
            return client.getpeercert()
        except ssl.SSLWantReadError:
            pass
        with contextlib.suppress(ssl.SSLWantReadError):
            server.do_handshake()
    return None
