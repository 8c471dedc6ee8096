"""TLS and credentials as options of `format("lanemq")`, the same for reading and writing.

What no option says is looked for in the environment of the process that plans the query. The result travels to the
tasks, so files must lie at the same place on all machines, and executors need no environment of their own. The rule
guarded here: no error and no text that Spark shows contains the secret.
"""

import os
from collections.abc import Mapping
from typing import Final

from lanemq.client.security import credentials_of, secret_in, secret_of_environment, security_of, tls_options
from lanemq.model.environment import VERIFY
from lanemq.model.errors import InvalidOption
from lanemq.net.security import Security, TlsOptions
from lanemq.wire.signing import Credentials

SECURITY_OPTIONS: Final = (
    "tls", "tls.ca", "tls.cert", "tls.key", "tls.verify",
    "accessKey", "secretKey", "secretKeyFile", "securityToken",
)  # fmt: skip

SECRETS: Final = frozenset({"secretkey", "securitytoken"})
"""Options whose values no text may show."""


def parse_security(options: Mapping[str, str]) -> Security:
    """From options with lower-case names."""
    return security_of(_tls(options), _credentials(options))


def _tls(options: Mapping[str, str]) -> TlsOptions | None:
    switch = options.get("tls", "true").strip().lower()
    if switch not in ("true", "false"):
        raise InvalidOption(f"tls: {switch!r} is neither true nor false")
    given = [name for name in SECURITY_OPTIONS if name.startswith("tls") and name in options]
    if not given:
        return None
    if switch == "false":
        if len(given) > 1:
            raise InvalidOption(f"{given[1]}: contradicts tls=false; leave one of them out")
        return None
    ca, cert, key = (options.get(f"tls.{name}") for name in ("ca", "cert", "key"))
    try:
        return tls_options(ca, cert, key, options.get("tls.verify", VERIFY[0]).strip().lower(), "tls.verify")
    except InvalidOption as error:
        name = next((name for name in ("tls.key", "tls.cert", "tls.ca") if name.replace(".", " ") in str(error)), "tls")
        raise InvalidOption(str(error) if str(error).startswith("tls.") else f"{name}: {error}") from None


def _credentials(options: Mapping[str, str]) -> Credentials | None:
    secret = options.get("secretkey")
    if "secretkeyfile" in options:
        if secret is not None:
            raise InvalidOption("secretKeyFile: contradicts secretKey; give one of them")
        secret = secret_in(options["secretkeyfile"], "secretKeyFile:")
    elif secret is None and "accesskey" in options:
        secret = secret_of_environment(os.environ)
    return credentials_of(options.get("accesskey"), secret, options.get("securitytoken"), ("accessKey", "secretKey"))
