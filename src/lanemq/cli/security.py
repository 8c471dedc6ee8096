"""TLS and credential options of every command that connects to a broker.

Clients take what they are not given from the environment, so an option sets the environment variable of the same name
while the command runs. A secret is never an argument, because every user of the machine can read arguments; it comes
from the environment or from a file.
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
    "tls": (environment.TLS, {"is_flag": True, "help": "Use TLS and trust the system's certificate authorities."}),
    "tls_ca": (
        environment.TLS_CA,
        {"type": _FILE, "help": "Use TLS and trust the certificate authorities in this PEM file."},
    ),
    "tls_cert": (
        environment.TLS_CERT,
        {"type": _FILE, "help": "Client certificate (PEM), for brokers that require one."},
    ),
    "tls_key": (
        environment.TLS_KEY,
        {"type": _FILE, "help": "Private key of --tls-cert (PEM), if it is in a separate file."},
    ),
    "tls_verify": (
        environment.TLS_VERIFY,
        {
            "type": click.Choice(environment.VERIFY),
            "help": "What to verify: authority and host name (full), authority only (ca), or nothing (none).",
        },
    ),
    "access_key": (
        environment.ACCESS_KEY,
        {"metavar": "NAME", "help": "User name (access key) that signs the requests."},
    ),
    "secret_key_file": (
        environment.SECRET_KEY_FILE,
        {"type": _FILE, "help": f"File with the user's secret key; or set {environment.SECRET_KEY}."},
    ),
}


OPTION_SYNONYMS = {
    **dict.fromkeys(("--partitions", "--partition-count", "--read-queue-nums", "--write-queue-nums"), "--queues"),
    **dict.fromkeys(
        ("--bootstrap-server", "--bootstrap-servers", "--broker", "--namesrv", "--namesrv-addr"), "--server"
    ),
    **dict.fromkeys(("--consumer-group", "--consumer", "--subscription"), "--group"),
    **dict.fromkeys(("--partition", "--queue-id"), "--queue"),
    **dict.fromkeys(("--sharding-key", "--message-key", "--routing-key"), "--key"),
    **dict.fromkeys(("--to-earliest", "--to-latest", "--to-offset", "--to-datetime", "--timestamp"), "--to"),
    **dict.fromkeys(("--force", "--execute"), "--yes"),
    **dict.fromkeys(("--fifo", "--order"), "--ordered"),
    "--port": "--listen",
    "--data-dir": "--data",
    "--concurrency": "--workers",
}
"""Options of a command by the names that other systems have for them."""


class SecurityOption(click.Option):
    """An option of TLS or credentials, which help pages list by themselves."""


class ConnectingCommand(click.Command):
    """A command whose help lists the options of TLS and credentials after its own.

    For an option of other systems it names its own: `--partitions` is `--queues`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = self._hint(error.option_name)
            if hint is None:
                raise
            raise click.NoSuchOption(
                error.option_name, f"No such option {error.option_name!r}. {hint}", ctx=ctx
            ) from None

    def _hint(self, option: str) -> str | None:
        """What to write instead: the option by its name here, or the argument without a name."""
        names = {name for each in self.params for name in each.opts}
        meant = OPTION_SYNONYMS.get(option, option)
        if meant in names:
            return f"Did you mean {meant}?"
        argument = meant.removeprefix("--")
        return f"{argument.upper()} is an argument: leave out {option}." if argument in names else None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        records = [(each, record) for each in options if (record := each.get_help_record(ctx)) is not None]
        protecting = [record for each, record in records if isinstance(each, SecurityOption)]
        with formatter.section("Options"):
            formatter.write_dl([record for each, record in records if not isinstance(each, SecurityOption)])
        if protecting:
            with formatter.section("TLS and credentials"):
                formatter.write_dl(protecting)


def with_security_options(command: F) -> F:
    """Adds the TLS and credential options; the command itself does not receive them."""

    @functools.wraps(command)
    def protected(*args: Any, **options: Any) -> Any:
        given = {variable: options.pop(name) for name, (variable, _) in _CLIENT.items()}
        _check_credentials(given)
        with _environment({variable: _text(value) for variable, value in given.items() if value}):
            return command(*args, **options)

    return cast(F, security_options(protected))


SECURITY_VARIABLES = {name: variable for name, (variable, _) in _CLIENT.items()}
"""The environment variable of each option."""


def security_options(command: F) -> F:
    """Adds the TLS and credential options; the command receives them."""
    decorated: Any = command
    for name, (variable, settings) in reversed(_CLIENT.items()):
        about: Any = {**settings, "help": f"{settings['help']}  [env var: {variable}]"}
        decorated = click.option(f"--{name.replace('_', '-')}", name, cls=SecurityOption, **about)(decorated)
    return cast(F, decorated)


def _check_credentials(given: dict[str, Any]) -> None:
    """Refuses a user without a secret and a secret without a user, in terms of the flags."""
    secrets = (environment.SECRET_KEY_FILE, environment.SECRET_KEY)
    user, secret = given[environment.ACCESS_KEY], given[environment.SECRET_KEY_FILE]
    if user and not secret and not any(map(os.environ.get, secrets)):
        raise click.UsageError(
            f"--access-key {user}: the secret is missing; give --secret-key-file or set {secrets[1]}"
        )
    if secret and not user and not os.environ.get(environment.ACCESS_KEY):
        raise click.UsageError(
            f"--secret-key-file: the user is missing; give --access-key or set {environment.ACCESS_KEY}"
        )


def as_flags(text: str) -> str:
    """Replaces the library's names in an error by flags: `tls ca` becomes `--tls-ca`."""
    return _TLS_NAME.sub(lambda found: f"--{found[0].replace(' ', '-')}", text).replace("with tls)", "with --tls)")


def _text(value: object) -> str:
    return "on" if value is True else str(value)


@contextlib.contextmanager
def _environment(given: dict[str, str]) -> Iterator[None]:
    """Sets these variables, and hides those that the given flags override under another name."""
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
