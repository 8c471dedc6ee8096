"""TLS and credentials on the command line: options of every command that asks a broker.

Clients look into the environment for what they are not told, so an option here is the environment variable of the
same name for as long as the command runs. The rule guarded here: a secret is never an argument, because every user
of the machine can read those; it is in the environment, or in a file.
"""

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import click

from lanemq.model import environment

_TLS_NAME = re.compile(r"\btls (?:ca|cert|key)\b")

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(dir_okay=False)
_CLIENT: dict[str, tuple[str, dict[str, Any]]] = {
    "tls": (environment.TLS, {"is_flag": True, "help": "Encrypt, and trust the system's authorities."}),
    "tls_ca": (environment.TLS_CA, {"type": _FILE, "help": "Encrypt, and trust the authorities in this PEM file."}),
    "tls_cert": (environment.TLS_CERT, {"type": _FILE, "help": "Our certificate, PEM, for brokers that ask for one."}),
    "tls_key": (environment.TLS_KEY, {"type": _FILE, "help": "Its private key, PEM, if in a file of its own."}),
    "tls_verify": (
        environment.TLS_VERIFY,
        {"type": click.Choice(environment.VERIFY), "help": "What to check: host name too, authority only, nothing."},
    ),
    "access_key": (environment.ACCESS_KEY, {"metavar": "NAME", "help": "Sign requests as this user."}),
    "secret_key_file": (
        environment.SECRET_KEY_FILE,
        {"type": _FILE, "help": f"File with the user's secret; or set {environment.SECRET_KEY}."},
    ),
}


def asks_securely(command: F) -> F:
    """Adds the options of a client; the command itself does not see them."""

    @functools.wraps(command)
    def protected(*args: Any, **options: Any) -> Any:
        given = {variable: options.pop(name) for name, (variable, _) in _CLIENT.items()}
        _refuse_half_a_user(given)
        with _environment({variable: _text(value) for variable, value in given.items() if value}):
            return command(*args, **options)

    decorated: Any = protected
    for name, (variable, settings) in reversed(_CLIENT.items()):
        about: Any = {**settings, "help": f"{settings['help']}  [env var: {variable}]"}
        decorated = click.option(f"--{name.replace('_', '-')}", name, **about)(decorated)
    return cast(F, decorated)


def _refuse_half_a_user(given: dict[str, Any]) -> None:
    """Told here by the names of the options: what the clients would say names variables that nobody has set."""
    secrets = (environment.SECRET_KEY_FILE, environment.SECRET_KEY)
    user, secret = given[environment.ACCESS_KEY], given[environment.SECRET_KEY_FILE]
    if user and not secret and not any(map(os.environ.get, secrets)):
        raise click.UsageError(
            f"--access-key {user}: the secret is missing; give --secret-key-file or set {secrets[1]}"
        )
    if secret and not user and not os.environ.get(environment.ACCESS_KEY):
        raise click.UsageError(f"--secret-key-file: whose? Give --access-key or set {environment.ACCESS_KEY}")


def as_options(text: str) -> str:
    """What clients call `tls ca` is `--tls-ca` for commands that have the options of `asks_securely`."""
    return _TLS_NAME.sub(lambda found: f"--{found[0].replace(' ', '-')}", text).replace("with tls)", "with --tls)")


def _text(value: object) -> str:
    return "on" if value is True else str(value)


@contextlib.contextmanager
def _environment(given: dict[str, str]) -> Iterator[None]:
    """The command line wins over what is set, also where one says the same in two ways."""
    hidden = {environment.SECRET_KEY} if environment.SECRET_KEY_FILE in given else set()
    encrypts = {environment.TLS_CA, environment.TLS_CERT, environment.TLS_VERIFY}
    if given.keys() & encrypts and environment.TLS not in given:
        hidden.add(environment.TLS)
    before = {name: os.environ.get(name) for name in (*given, *hidden)}
    _set({**dict.fromkeys(hidden), **given})
    try:
        yield
    finally:
        _set(before)


def _set(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
