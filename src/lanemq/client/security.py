"""How a client's connections are protected: as the program says, otherwise as the environment says.

Every client and the command line read the environment, as database drivers do: the same program runs against an open
broker on a laptop and a protected one in production, and a secret need not be in the program's files or in a command
line that other users of the machine can read.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import TypedDict

from lanemq.model.checks import check_kind
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
    VARIABLES,
    VERIFY,
)
from lanemq.model.errors import InvalidOption
from lanemq.net.security import Security, TlsOptions
from lanemq.wire.signing import Credentials

_YES, _NO = frozenset({"1", "true", "on", "yes"}), frozenset({"", "0", "false", "off", "no"})


class SecuritySettings(TypedDict, total=False):
    """The keyword arguments of every client that protect its connections."""

    tls: TlsOptions | None
    credentials: Credentials | None


def security_of(
    tls: TlsOptions | None = None,
    credentials: Credentials | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Security:
    """The given values; those that are None come from the environment."""
    check_kind("tls", tls, (TlsOptions, NoneType), "TlsOptions(...), or None")
    if not isinstance(credentials, Credentials | None):  # the value may be the secret: it is not shown
        raise InvalidOption("credentials must be Credentials(access_key, secret_key), or None")
    names = os.environ if environment is None else environment
    return Security(
        tls if tls is not None else tls_of_environment(names),
        credentials if credentials is not None else credentials_of_environment(names),
    )


def security_of_side(side: str, environment: Mapping[str, str] | None = None) -> SecuritySettings | None:
    """What the environment says for one of two sides: `LANEMQ_FROM_TLS_CA` is `LANEMQ_TLS_CA` for the side `FROM`.

    None if it names nothing for this side. `InvalidOption` if it also has variables for both sides: a client takes from
    those what it is not given, so half of a side's protection could come from the other side's.
    """
    names = os.environ if environment is None else environment
    own = {name: names[side_name] for name in VARIABLES if (side_name := name.replace("_", f"_{side}_", 1)) in names}
    general = [name for name in VARIABLES if name in names]
    if own and general:
        raise InvalidOption(
            f"{general[0]} is set for both sides and {next(iter(own)).replace('_', f'_{side}_', 1)} for one: "
            f"use LANEMQ_FROM_… and LANEMQ_TO_… for each side, without options"
        )
    return SecuritySettings(tls=tls_of_environment(own), credentials=credentials_of_environment(own)) if own else None


def tls_of_environment(names: Mapping[str, str]) -> TlsOptions | None:
    """The TLS options of the environment; None if it sets none."""
    switch = names.get(TLS, "").strip().lower()
    if switch not in _YES | _NO:
        raise InvalidOption(f"{TLS}={switch!r}: write on or off")
    ca, cert, key = (names.get(name) or None for name in (TLS_CA, TLS_CERT, TLS_KEY))
    wanted = switch in _YES or (TLS not in names and (ca or cert or names.get(TLS_VERIFY)))
    return tls_options(ca, cert, key, names.get(TLS_VERIFY) or VERIFY[0], TLS_VERIFY) if wanted else None


def tls_options(ca: str | None, cert: str | None, key: str | None, verify: str, name: str) -> TlsOptions:
    """TLS options from text, as environments, command lines and Spark give them."""
    if verify not in VERIFY:
        raise InvalidOption(f"{name}={verify!r}: write {', '.join(VERIFY[:-1])} or {VERIFY[-1]}")
    return TlsOptions(ca, cert, key, verify_host=verify == "full", insecure_skip_verify=verify == "none")


def credentials_of_environment(names: Mapping[str, str]) -> Credentials | None:
    """The credentials of the environment; None if it sets none. Only half of them is an error."""
    user, secret = names.get(ACCESS_KEY) or None, secret_of_environment(names)
    return credentials_of(user, secret, names.get(SECURITY_TOKEN) or None, (ACCESS_KEY, SECRET_KEY))


def secret_of_environment(names: Mapping[str, str]) -> str | None:
    """The secret, or the content of the secret file; setting both is an error."""
    secret = names.get(SECRET_KEY) or None
    if not names.get(SECRET_KEY_FILE):
        return secret
    if secret is not None:
        raise InvalidOption(f"{SECRET_KEY} and {SECRET_KEY_FILE} are both set: unset one of them")
    return secret_in(names[SECRET_KEY_FILE], SECRET_KEY_FILE)


def credentials_of(
    user: str | None, secret: str | None, token: str | None, names: tuple[str, str]
) -> Credentials | None:
    """Credentials if both user and secret are given, None if neither is. `names` are the two names for the error."""
    if user is None and secret is None:
        return None
    if user is None or secret is None:
        present, missing = names if secret is None else names[::-1]
        raise InvalidOption(f"{present} is set and {missing} is not: set both, or neither")
    return Credentials(user, secret, token)


def secret_in(file: str, name: str) -> str:
    """The secret in a file that holds nothing else."""
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{name} {file}: cannot be read: {getattr(error, 'strerror', None) or 'no text'}") from None
