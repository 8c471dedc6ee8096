"""How every command answers: tables for people, one JSON document for programs.

Message bodies and keys are written by strangers, so nothing of them reaches the terminal as a control sequence
or as markup. `rich` is imported with the first table: most calls of a script end without one.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import msgspec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 10_000
"""Columns of something that is not a terminal: nothing is cut off there."""

NONE = "–"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; `empty` is what to say instead when there are no rows, and what to do about it."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    empty: str = "nothing to show"


Part: TypeAlias = Grid | str


def show(as_json: bool, document: Callable[[], object], *parts: Part) -> None:
    """The document for programs, or the parts for people."""
    if as_json:
        click.echo(msgspec.json.format(to_json(document()), indent=2))
        return
    for part in parts:
        if isinstance(part, Grid) and part.rows:
            _console().print(table_of(part))
        else:
            click.echo(part.empty if isinstance(part, Grid) else part)


def to_json(value: object) -> str:
    """Any of our values as JSON; named tuples keep their names."""
    return msgspec.json.encode(_named(value)).decode()


def cell(value: object) -> str:
    """One cell: absent things are a dash, times are local, text is harmless."""
    match value:
        case None | "":
            return NONE
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        case bytes():
            return harmless(value.decode("utf-8", "backslashreplace"))
        case _:
            return harmless(str(value))


def harmless(text: str) -> str:
    """Text without control characters: those are shown, not obeyed."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def wall_time(millis: int) -> datetime | None:
    """A broker's time stamp; it writes 0 or -1 for "never"."""
    return datetime.fromtimestamp(millis / 1000, UTC) if millis > 0 else None


def body_for_json(body: bytes) -> object:
    """JSON bodies as what they say, text as text, anything else with its odd bytes escaped."""
    try:
        return msgspec.json.decode(body)
    except (ValueError, msgspec.MsgspecError):
        return body.decode("utf-8", "backslashreplace")


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@contextlib.contextmanager
def unlogged(name: str) -> Iterator[None]:
    """Without the log of one module: what it warns of is what the command itself says at its end."""
    log = logging.getLogger(name)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _named(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _named(item) for name, item in value._asdict().items()}
    if isinstance(value, dict):
        return {str(name): _named(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_named(item) for item in value]
    return value


def _console() -> "Console":
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)


def table_of(grid: Grid) -> "Table":
    """A grid as `rich` prints it."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, name in enumerate(grid.columns):
        table.add_column(name, justify="right" if _are_numbers(grid, number) else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*map(cell, row))
    return table


def _are_numbers(grid: Grid, column: int) -> bool:
    present = [row[column] for row in grid.rows if row[column] is not None]
    return bool(present) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in present)
