"""`lanemq console`: serves the console until SIGTERM or Ctrl-C."""

import os
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from lanemq.cli.listening import cannot_listen
from lanemq.cli.options import CliError, connects, duration
from lanemq.cli.output import log_to_stderr
from lanemq.model import environment
from lanemq.model.environment import install_extra
from lanemq.net.address import Address, parse_address
from lanemq.net.security import key_problem

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_LISTEN = "127.0.0.1:9870"
PACKAGES = ("starlette", "jinja2", "uvicorn", "python_multipart")
"""The packages of the extra `console`, by the names of their modules."""


_OPTIONS: tuple[Callable[[F], F], ...] = (
    click.option("--open", "open_page", is_flag=True, help="Open the console in a browser."),
    click.option(
        "--every",
        type=duration,
        default="2s",
        show_default=True,
        metavar="DURATION",
        help="Time between two readings while a page is open. Shorter asks the brokers more often.",
    ),
    click.option(
        "--history",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of histories: shows every turn of a key, and checks the order.",
    ),
    click.option(
        "--pipeline",
        "pipelines",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="FILE|CHECKPOINT",
        help="A pipeline to show; may be repeated.",
    ),
    click.option("--spark-page", default="", metavar="URL", help="Address of Spark's own page, to link to."),
    click.option(
        "--remote-writes",
        is_flag=True,
        help="Allow changes from other machines, too, after signing in. Use TLS in front.",
    ),
    click.option(
        "--allow-host", "allow_hosts", multiple=True, metavar="NAME", help="Host name of the console; may be repeated."
    ),
)


def console_options(command: F) -> F:
    """Adds what every command that starts a console takes; addresses and credentials are the command's own."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def as_arguments(every: float, history: Path | None, pipelines: Sequence[Path], **others: Any) -> list[str]:
    """The settings of `console_options`, without --open, as arguments of `lanemq console`. Defaults are left out."""
    context, words = click.get_current_context(), list[str]()
    if context.get_parameter_source("every") is not ParameterSource.DEFAULT:
        words.append(f"--every={every}s")
    if history is not None:
        words.append(f"--history={history}")
    words += [f"--pipeline={place}" for place in pipelines]
    words += [f"--spark-page={others['spark_page']}"] if others["spark_page"] else []
    words += ["--remote-writes"] if others["remote_writes"] else []
    return words + [f"--allow-host={name}" for name in others["allow_hosts"]]


@click.command()
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, metavar="HOST:PORT", help="Address to listen on.")
@console_options
@connects
@click.pass_context
def console(context: click.Context, /, listen: str, server: str, open_page: bool, **given: Any) -> None:
    """Serve the console: pages about topics, keys, groups, and everything that waits.

    Looking needs no sign-in. Changes need the token that is printed at the start, or a user of the broker.
    """
    log_to_stderr("WARNING")
    origins = {name: _origin(context, name) for name in ("server", "listen", *given)}
    run_console(parse_address(listen), server, open_page=open_page, origins=origins, **given)


def run_console(listen: Address, server: str, *, open_page: bool, **settings: Any) -> None:
    """Serves a console until a signal."""
    check_console_packages()
    from lanemq.console.server import listening_socket, new_token, serve, url_of
    from lanemq.console.settings import ConsoleSettings

    checked = ConsoleSettings(server, **settings)
    cert, key = os.environ.get(environment.TLS_CERT), os.environ.get(environment.TLS_KEY)
    if cert and (problem := key_problem(cert, key or None)) is not None:
        click.echo(f"warning: {problem}", err=True)
    try:
        listener = listening_socket(listen)
    except OSError as error:
        raise cannot_listen(listen, error) from error
    checked = replace(checked, listen=str(Address(*listener.getsockname()[:2])))
    token, url = new_token(), url_of(listener)

    def ready() -> None:
        click.echo(f"LaneMQ console on {url} for {server}", err=True)
        click.echo(f"token for changes: {token}", err=True)
        if open_page:
            webbrowser.open(url)

    with listener:
        serve(checked, listener, token, ready)


def check_console_packages() -> None:
    """Raises `CliError` if a package of the extra `console` is missing; imports none of them."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise CliError(f"the console needs {', '.join(missing)}: {install_extra('console')}")


def _origin(context: click.Context, name: str) -> str:
    """Where the value of an option came from."""
    source = context.get_parameter_source(name)
    if source is ParameterSource.COMMANDLINE:
        return "command line"
    return "environment LANEMQ_SERVER" if source is ParameterSource.ENVIRONMENT else "default"
