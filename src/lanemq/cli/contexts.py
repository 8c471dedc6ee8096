"""Contexts: named brokers, with what is needed to reach them, so that commands need no flags.

A context applies as a whole, to commands for which neither --server nor LANEMQ_SERVER names a broker. Flags and
environment variables for TLS and credentials override its single values. The file holds paths of secrets, not secrets.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from click.core import ParameterSource

from lanemq.cli.errors import CliError

VARIABLE = "LANEMQ_CONTEXT"
"""Names the context of a shell, whichever is the current one."""


class Context(msgspec.Struct, omit_defaults=True):
    """One broker or cluster, and the environment variables that protect connections to it."""

    server: str
    protection: dict[str, str] = {}


class Contexts(msgspec.Struct, omit_defaults=True):
    """The file of contexts."""

    current: str | None = None
    contexts: dict[str, Context] = {}


def contexts_file() -> Path:
    """Where contexts are kept: below XDG_CONFIG_HOME, or below ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "lanemq" / "contexts.json"


def load() -> Contexts:
    """All contexts; none if there is no file."""
    path = contexts_file()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, msgspec.MsgspecError) as error:
        raise CliError(f"the contexts in {path} cannot be read: {error}; repair or remove the file") from error


def save(found: Contexts) -> None:
    """Replaces the file, for this user's eyes only."""
    path = contexts_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2))
    fresh.replace(path)


def selected() -> tuple[str, Context] | None:
    """The context that LANEMQ_CONTEXT names, or else the current one."""
    wanted = os.environ.get(VARIABLE)
    if not wanted and not contexts_file().exists():
        return None
    found = load()
    name = wanted or found.current
    if name is None:
        return None
    if name not in found.contexts:
        raise CliError(f"there is no context {name!r}: see lanemq context list, or unset {VARIABLE}")
    return name, found.contexts[name]


@contextlib.contextmanager
def applied(server: str) -> Iterator[str]:
    """The server of the running command; that of the context, with its protection, if the user named none."""
    source = click.get_current_context().get_parameter_source("server")
    found = selected() if source in (None, ParameterSource.DEFAULT) else None
    if found is None:
        yield server
        return
    context = found[1]
    added = {name: value for name, value in context.protection.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield context.server
    finally:
        for name in added:
            os.environ.pop(name, None)
