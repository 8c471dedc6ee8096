"""The output of every command: tables for people, or one JSON document for programs.

Message bodies and keys are untrusted, so they never reach the terminal as control sequences or markup. `rich` is
imported with the first table, because most calls from scripts print none.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias, TypeVar

import click
import msgspec

from lanemq.clock import SystemClock
from lanemq.clock import time_text as time_text
from lanemq.model.wording import duration_text as duration_text
from lanemq.model.wording import plural as plural
from lanemq.model.wording import printable as printable

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

T = TypeVar("T")

PIPE_WIDTH = 10_000
"""Width in columns if the output is not a terminal, so that nothing is cut off."""

NONE = "–"

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

AUDIT_BYTES = 10 * 1024 * 1024

GAP = 3
"""Columns between two columns of a table."""

MIN_LAST = 20
"""Columns that the last column of a table needs at least, if its text is longer."""

SHORT_CHARS = 60
"""Longest text in a table cell that shows only the beginning of a value."""
PREVIEW_BYTES = 4 * SHORT_CHARS
"""Bytes of a body that such a cell needs."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; `empty` is printed instead if there are no rows."""

    columns: tuple[str, ...]
    """The headings. If all of them are empty, the table has no line of headings."""
    rows: Sequence[Sequence[object]]
    empty: str = "nothing to show"


Part: TypeAlias = Grid | str


def show(as_json: bool, document: Callable[[], object], *parts: Part) -> None:
    """Prints the document as JSON, or the parts as text."""
    if as_json:
        _write(msgspec.json.format(to_json(document()), indent=2))
        return
    print_parts(*parts)


def print_parts(*parts: Part, err: bool = False) -> None:
    """Prints tables and lines, to stdout or stderr."""
    for part in parts:
        if isinstance(part, Grid) and part.rows:
            _write(rendered(part, _width(sys.stderr if err else sys.stdout)), err=err)
        else:
            _write(part.empty if isinstance(part, Grid) else part, err=err)


def _write(text: str, *, err: bool = False) -> None:
    """Prints text. A closed stdout or a full disk is an error: a script must not take the missing answer for none."""
    if sys.stdout is None and not err:
        raise click.ClickException("stdout is closed, so the answer cannot be shown: use >/dev/null to discard it")
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        raise  # click ends quietly
    except OSError as error:
        raise click.ClickException(f"the answer cannot be written: {error.strerror}") from error


def failure_of(stream: TextIO | None) -> OSError | None:
    """Why what is left to write of the stream cannot be written, and is discarded; None if all is written."""
    if stream is None:
        return None
    try:
        stream.flush()
    except OSError as error:
        discard(stream)
        return error
    except ValueError:  # it was closed
        return None
    return None


def discard(stream: TextIO) -> None:
    """Discards everything that is printed to the stream, and what it has not written yet.

    Otherwise the interpreter would try to write that once more at its end, complain, and change the exit code.
    """
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


@contextlib.contextmanager
def live_parts() -> Iterator[Callable[..., None]]:
    """A function that replaces what it printed before; where there is no terminal, it prints one after the other."""
    if not _is_terminal(sys.stdout):
        yield print_parts
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        yield lambda *parts: live.update(Text("\n".join(_texts(parts))), refresh=True)


def _texts(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Grid):
            yield rendered(part, _width(sys.stdout)) if part.rows else part.empty
        else:
            yield part


def rendered(grid: Grid, width: int) -> str:
    """A grid as text that is at most `width` columns wide.

    Only the last column of a table is folded. If the others leave too little room for it, every row becomes a block of
    lines: a table whose cells are all folded cannot be read.
    """
    cells = [[cell(value) for value in row] for row in grid.rows]
    widths = [max(map(columns_of, (name, *column))) for name, *column in zip(grid.columns, *cells, strict=True)]
    left = width - sum(widths[:-1]) - GAP * (len(widths) - 1)
    if left < min(widths[-1], MIN_LAST):
        return _blocks(grid.columns, cells, width)
    from rich.console import Console

    console = Console(width=width, markup=False, highlight=False, emoji=False, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table_of(grid))
    return captured.get().rstrip("\n")


def columns_of(text: str) -> int:
    """The columns that a line takes in a terminal: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    name_width = max(map(len, columns))
    lines: list[str] = []
    for row in rows:
        lines += [""] if lines else []
        for name, text in zip(columns, row, strict=True):
            start = f"{name:<{name_width}}  "
            inside = _folded(text, max(10, width - len(start))) or [""]
            lines += [start + inside[0], *(" " * len(start) + more for more in inside[1:])]
    return "\n".join(lines)


def _folded(text: str, width: int) -> list[str]:
    """The lines of a text that is at most so many columns wide. Few tables need it, so its modules are loaded here."""
    if text.isascii():
        import textwrap

        return textwrap.wrap(text, width)
    from rich.console import Console
    from rich.text import Text

    return [line.plain.rstrip() for line in Text(text).wrap(Console(width=width), width, overflow="fold")]


def _is_terminal(stream: Any) -> bool:
    """False also for a stream that was closed before the start, which is None."""
    return stream is not None and bool(stream.isatty())


def _width(stream: Any) -> int:
    if not _is_terminal(stream):
        return PIPE_WIDTH
    import shutil

    return shutil.get_terminal_size().columns


def to_json(value: object) -> str:
    """A value as JSON; named tuples become objects."""
    return msgspec.json.encode(_named(value)).decode()


def cell(value: object) -> str:
    """The text of one table cell: a dash for nothing, local times with their zone, printable text."""
    match value:
        case None | "":
            return NONE
        case bool():
            return "yes" if value else "no"
        case datetime():
            return time_text(value)
        case bytes():
            return printable(value.decode("utf-8", "backslashreplace"))
        case _:
            return printable(str(value))


class LogFormat(Enum):
    TEXT = "text"
    JSON = "json"


def log_to_stderr(level: int | str, form: LogFormat = LogFormat.TEXT, begins_with: str = "") -> None:
    """Logs this level and above to stderr; each line of text has this beginning."""
    handler = logging.StreamHandler(sys.stderr)
    text = _LogLine(f"{begins_with}%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonLine() if form is LogFormat.JSON else text)
    logging.basicConfig(level=level, handlers=[handler])


def announce(level: int, text: str, form: LogFormat) -> None:
    """Writes a line to stderr whatever the log level is: as it stands, or as an event in JSON."""
    if form is LogFormat.JSON:
        text = _JsonLine().format(logging.LogRecord("lanemq.broker", level, "", 0, text, None, None))
    click.echo(text, err=True)


def log_audit_to(path: Path) -> None:
    """Writes the broker's audit lines to a file, which is begun anew at 10 MiB; five older ones are kept."""
    from logging.handlers import RotatingFileHandler

    from lanemq.net.rate_limited_log import FewLines

    class PrivateFiles(RotatingFileHandler):
        def _open(self) -> Any:
            """Every new file, also after a rotation, is readable for the owner and his group only."""
            return open(self.baseFilename, self.mode, encoding=self.encoding, opener=_private)

        def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
            """A full disk does not stop the broker: its log gets the line instead."""
            why = sys.exc_info()[1]
            lines.write(logging.WARNING, "audit log", f"{path} cannot be written ({why}): {record.getMessage()}")

    audit, lines = logging.getLogger("lanemq.audit"), FewLines(logging.getLogger(__name__), SystemClock())
    try:
        handler = PrivateFiles(path, maxBytes=AUDIT_BYTES, backupCount=5, encoding="utf-8", delay=False)
        path.chmod(0o640)
    except OSError as error:
        raise click.ClickException(f"the audit log {path} cannot be written: {error.strerror}; see --audit") from error
    handler.setFormatter(logging.Formatter("%(message)s"))
    audit.addHandler(handler)
    audit.setLevel(logging.INFO)
    audit.propagate = False


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o640)


class _JsonLine(logging.Formatter):
    """One JSON object per event, in one line, with the traceback inside."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return to_json(fields)


class _LogLine(logging.Formatter):
    """One line per event. Control characters are escaped, so that a name chosen by a client cannot forge a line.

    The lines of a traceback are indented: an error's text may have been chosen by a client too.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(f"  {printable(line)}" for line in super().formatException(ei).split("\n"))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return time_text(datetime.fromtimestamp(record.created, UTC))


def body_for_json(body: bytes) -> object:
    """A message body for JSON output: parsed if it is JSON, else text with other bytes escaped."""
    try:
        return msgspec.json.decode(body)
    except (ValueError, msgspec.MsgspecError):
        return body.decode("utf-8", "backslashreplace")


def short_text(text: str) -> str:
    """The beginning of a text that fits into a table cell."""
    return text if len(text) <= SHORT_CHARS else text[: SHORT_CHARS - 1] + "…"


def size_text(count: float) -> str:
    """A number of bytes for people: `1.5 GiB`."""
    unit = 0
    while count >= 1024 and unit + 1 < len(_UNITS):
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"


@contextlib.contextmanager
def without_log(name: str) -> Iterator[None]:
    """Disables one logger whose warnings the command itself reports at its end."""
    log = logging.getLogger(name)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def progress(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, with a bar on stderr that shows how many are done; no bar if stderr is not a terminal."""
    if not _is_terminal(sys.stderr) or len(items) < 2:
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, what, console=Console(stderr=True), transient=True)


@contextlib.contextmanager
def moving_line(text: str) -> Iterator[None]:
    """A line on stderr that moves while the block runs, with the time since its start; on a terminal only."""
    with _rich_progress("spinner") as shown:
        if shown is not None:
            shown.add_task(text, total=None)
        yield


@contextlib.contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function that says how much of `total` is done, as a bar on stderr; it does nothing if that is no terminal."""
    with _rich_progress("bar") as shown:
        if shown is None:
            yield lambda done: None
            return
        task = shown.add_task(what, total=total)
        yield lambda done: shown.update(task, completed=done)


@contextlib.contextmanager
def _rich_progress(kind: str) -> "Iterator[Progress | None]":
    if not _is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    middle = (BarColumn(), TaskProgressColumn()) if kind == "bar" else ()
    before = () if kind == "bar" else (SpinnerColumn(),)
    text = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True)
    with Progress(*before, text, *middle, TimeElapsedColumn(), console=console, transient=True) as shown:
        yield shown


def _named(value: Any) -> Any:
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode()  # a path may have bytes that are not UTF-8
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _named(item) for name, item in value._asdict().items()}
    if isinstance(value, dict):
        return {_named(str(name)): _named(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_named(item) for item in value]
    return value


def table_of(grid: Grid) -> "Table":
    """A grid as a `rich` table."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=any(grid.columns))
    for number, name in enumerate(grid.columns):
        last = number == len(grid.columns) - 1
        justify: Any = "right" if _are_numbers(grid, number) else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=not last)
    for row in grid.rows:
        table.add_row(*map(cell, row))
    return table


def _are_numbers(grid: Grid, column: int) -> bool:
    present = [row[column] for row in grid.rows if row[column] is not None]
    return bool(present) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in present)
