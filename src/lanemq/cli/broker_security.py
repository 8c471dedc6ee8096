"""TLS and users on the command line of the broker.

Encryption alone keeps nobody out who speaks TLS, and users alone keep nobody from reading along; each has its options.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from lanemq.net.server_tls import ServerTls, TlsMode

F = TypeVar("F", bound=Callable[..., Any])


def serves_securely(command: F) -> F:
    """Adds the options of a broker; the command gets `tls` and `users`."""

    @functools.wraps(command)
    def protected(*args: Any, **options: Any) -> Any:
        cert, key, ca, mode = (options.pop(name) for name in ("tls_cert", "tls_key", "tls_client_ca", "tls_mode"))
        if cert is None and (key or ca or mode):
            raise click.UsageError("--tls-key, --tls-client-ca and --tls-mode need --tls-cert")
        tls = None if cert is None else ServerTls(cert, key, ca, TlsMode(mode or TlsMode.ENFORCING.value))
        return command(*args, tls=tls, **options)

    file = click.Path(path_type=Path, dir_okay=False)
    modes = click.Choice([mode.value for mode in TlsMode])
    decorated: Any = protected
    for option in (
        click.option("--users", type=file, help="File of users and their rights, TOML; without it everybody may."),
        click.option("--tls-mode", type=modes, help="Serve clients without TLS too?  [default: enforcing]"),
        click.option("--tls-client-ca", type=file, help="Clients must show a certificate of these authorities."),
        click.option("--tls-key", type=file, help="Its private key, PEM, if in a file of its own."),
        click.option("--tls-cert", type=file, help="Speak TLS with this certificate (chain), PEM."),
    ):
        decorated = option(decorated)
    return cast(F, decorated)
