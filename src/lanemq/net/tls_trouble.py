"""What a failed TLS connection means, in words: OpenSSL's own say what went wrong, not what to do about it."""

import ssl
from os import fspath

from lanemq.net.address import Address
from lanemq.net.security import Security
from lanemq.net.tls import TlsOptions

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
"""What the other side's alert asks of us, by the end of its name."""


def handshake_trouble(error: OSError, address: Address, tls: TlsOptions) -> str:
    """Why no TLS connection came about, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verification(error, address, tls)
    refusal = alert(error)
    if refusal is not None:
        return refusal
    return f"it ended the handshake ({_reason(error)}): does a broker with TLS listen there? It may be a plain one"


def unheard(security: Security) -> str:
    """What may be behind a connection that ended before anything was heard: many brokers just hang up."""
    if security.tls is None:
        return (
            ", and nothing was heard from it: it hangs, is no broker, or takes nothing but TLS (then connect with tls)"
        )
    if security.tls.cert is None:
        return ", and nothing was heard from it: it may want a certificate of ours, give tls cert and tls key"
    return (
        ", and nothing was heard from it: it may not accept our certificate, "
        "whose authority must be in the broker's --tls-client-ca"
    )


def alert(error: BaseException | None) -> str | None:
    """What the other side asks of us; None if it did not say."""
    if not isinstance(error, ssl.SSLError) or "ALERT" not in (error.reason or ""):
        return None
    return next((told for end, told in _REFUSALS.items() if error.reason.endswith(end)), None)


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
