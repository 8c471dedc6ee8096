"""How a client's connections are protected: what the program says, and else what the environment says.

The environment is asked by every client and by the command line, as database drivers do it: the same program runs
against an open broker on a desk and a protected one in production, and a secret need not stand in any file of the
program, nor in a command line that everybody on the machine can read.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from lanemq.model.environment import (
    ACCESS_KEY,
    SECRET_KEY,
    SECRET_KEY_FILE,
    SECURITY_TOKEN,
    TLS,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
    TLS_VERIFY,
    VERIFY,
)
from lanemq.model.errors import InvalidOption
from lanemq.net.security import Security, TlsOptions
from lanemq.wire.signing import Credentials

_YES, _NO = frozenset({"1", "true", "on", "yes"}), frozenset({"", "0", "false", "off", "no"})


class SecuritySettings(TypedDict, total=False):
    """What every client takes as keyword arguments."""

    tls: TlsOptions | None
    credentials: Credentials | None


def security_of(
    tls: TlsOptions | None = None,
    credentials: Credentials | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Security:
    """What is given wins; what is not given is looked for in the environment."""
    names = os.environ if environment is None else environment
    return Security(
        tls if tls is not None else tls_of_environment(names),
        credentials if credentials is not None else credentials_of_environment(names),
    )


def tls_of_environment(names: Mapping[str, str]) -> TlsOptions | None:
    """None if nothing there speaks of TLS."""
    switch = names.get(TLS, "").strip().lower()
    if switch not in _YES | _NO:
        raise InvalidOption(f"{TLS}={switch!r}: write on or off")
    ca, cert, key = (names.get(name) or None for name in (TLS_CA, TLS_CERT, TLS_KEY))
    wanted = switch in _YES or (TLS not in names and (ca or cert or names.get(TLS_VERIFY)))
    return tls_options(ca, cert, key, names.get(TLS_VERIFY) or VERIFY[0], TLS_VERIFY) if wanted else None


def tls_options(ca: str | None, cert: str | None, key: str | None, verify: str, name: str) -> TlsOptions:
    """The options from text, as environments, command lines and Spark have it."""
    if verify not in VERIFY:
        raise InvalidOption(f"{name}={verify!r}: write {', '.join(VERIFY[:-1])} or {VERIFY[-1]}")
    return TlsOptions(ca, cert, key, verify_host=verify == "full", insecure_skip_verify=verify == "none")


def credentials_of_environment(names: Mapping[str, str]) -> Credentials | None:
    """None if nothing there speaks of credentials; half of them is a mistake."""
    user, secret = names.get(ACCESS_KEY) or None, secret_of_environment(names)
    return credentials_of(user, secret, names.get(SECURITY_TOKEN) or None, (ACCESS_KEY, SECRET_KEY))


def secret_of_environment(names: Mapping[str, str]) -> str | None:
    """The secret itself, or that of the file that is named; not both."""
    secret = names.get(SECRET_KEY) or None
    if not names.get(SECRET_KEY_FILE):
        return secret
    if secret is not None:
        raise InvalidOption(f"{SECRET_KEY} and {SECRET_KEY_FILE} are both set; which one is meant?")
    return secret_in(names[SECRET_KEY_FILE], SECRET_KEY_FILE)


def credentials_of(
    user: str | None, secret: str | None, token: str | None, names: tuple[str, str]
) -> Credentials | None:
    """Both or neither; `names` says what the missing half is called where it should have been given."""
    if user is None and secret is None:
        return None
    if user is None or secret is None:
        given, missing = names if secret is None else names[::-1]
        raise InvalidOption(f"{given} is set and {missing} is not; both belong together")
    return Credentials(user, secret, token)


def secret_in(file: str, name: str) -> str:
    """The secret of a file that holds nothing else."""
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{name} {file}: cannot be read: {getattr(error, 'strerror', None) or 'no text'}") from None
