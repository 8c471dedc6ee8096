"""`lanemq context`: names brokers, and chooses the one that commands talk to."""

import os
from typing import Any

import click

from lanemq.cli.contexts import VARIABLE, Context, contexts_file, load, save, selected
from lanemq.cli.errors import CliError
from lanemq.cli.options import DEFAULT_SERVER, InOrder, json_option
from lanemq.cli.output import Grid, plural, show
from lanemq.cli.security import SECURITY_VARIABLES, security_options
from lanemq.model.names import check_group
from lanemq.net.address import parse_addresses


@click.group(cls=InOrder)
def context() -> None:
    """Name brokers, and choose the one that commands talk to.

    A context applies to commands without --server, unless LANEMQ_SERVER is set. LANEMQ_CONTEXT chooses one for a shell.
    """


@context.command("set")
@click.argument("name")
@click.option("--server", required=True, metavar="HOST:PORT", help="Address of the broker or the name servers.")
@security_options
def set_context(name: str, server: str, **protection: Any) -> None:
    """Create or replace the context NAME, and use it.

    Secrets are not stored, only the path of --secret-key-file.
    """
    check_group(name)
    parse_addresses(server)
    given = {SECURITY_VARIABLES[each]: value for each, value in protection.items() if value}
    found = load()
    found.contexts[name] = Context(server, {variable: _text(value) for variable, value in given.items()})
    found.current = name
    save(found)
    click.echo(f"context {name} is used now: {server}{_with(given)}")


@context.command("list")
@json_option
def list_contexts(as_json: bool) -> None:
    """List all contexts; the one in use is marked."""
    found, used, server = load(), selected(), os.environ.get("LANEMQ_SERVER")
    names = sorted(found.contexts)
    rows = [
        ("*" if used is not None and used[0] == name else "", name, found.contexts[name].server, _protection(name))
        for name in names
    ]
    show(
        as_json,
        lambda: [
            {
                "context": name,
                "server": found.contexts[name].server,
                "protection": found.contexts[name].protection,
                "in_use": used is not None and used[0] == name,
            }
            for name in names
        ],
        Grid(
            ("", "context", "server", "protection"),
            rows,
            f"no contexts: commands talk to {server or DEFAULT_SERVER}; add one with lanemq context set NAME --server "
            f"HOST:PORT",
        ),
    )
    if server:
        click.echo(f"note: LANEMQ_SERVER={server} is set in this shell, and wins over contexts", err=True)


@context.command()
@click.argument("name")
def use(name: str) -> None:
    """Use the context NAME from now on."""
    found = load()
    if name not in found.contexts:
        raise CliError(f"there is no context {name!r}: {_known(found.contexts)}")
    found.current = name
    save(found)
    click.echo(f"context {name} is used now: {found.contexts[name].server}")
    if os.environ.get(VARIABLE, name) != name:
        click.echo(f"note: {VARIABLE}={os.environ[VARIABLE]} is set in this shell, and wins", err=True)


@context.command()
@click.argument("name")
def delete(name: str) -> None:
    """Delete the context NAME. The broker is not affected."""
    found = load()
    if found.contexts.pop(name, None) is None:
        raise CliError(f"there is no context {name!r}: {_known(found.contexts)}")
    if found.current == name:
        found.current = None
    save(found)
    click.echo(f"context {name} was deleted from {contexts_file()}")


def _known(contexts: dict[str, Context]) -> str:
    return f"there are {', '.join(sorted(contexts))}" if contexts else "there are none"


def _protection(name: str) -> str:
    return ", ".join(f"{each}={value}" for each, value in load().contexts[name].protection.items())


def _text(value: object) -> str:
    return "on" if value is True else str(value)


def _with(given: dict[str, Any]) -> str:
    return f", with {plural(len(given), 'setting')} for TLS and credentials" if given else ""
