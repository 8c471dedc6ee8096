"""The events of a JSONL file, block by block.

Only the last line of a file may be torn: that is how a killed process looks. Any other line that does not parse is
complained about, and a complaint makes the verdict unknown.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from lanemq.checker.events import AnyEvent, Event

BLOCK_BYTES = 256 * 1024

_DECODER = msgspec.json.Decoder(AnyEvent)

Complain = Callable[[str], None]


class JsonLines:
    """One pass over a file; `complain` gets a sentence for every defect."""

    def __init__(self, path: Path, complain: Complain) -> None:
        self._path = path
        self._complain = complain
        self._last_n = -1

    def blocks(self) -> Iterator[Sequence[Event]]:
        tail = b""
        started = False
        with self._path.open("rb") as file:
            while data := file.read(BLOCK_BYTES):
                whole, newline, rest = data.rpartition(b"\n")
                if not newline:
                    tail += data
                    continue
                lines, tail = tail + whole, rest
                if not started and not _is_event(lines.lstrip().partition(b"\n")[0]):
                    self._refuse()
                    return
                started = True
                yield self._decode(lines)
        yield from self._last(tail, started)

    def _last(self, tail: bytes, started: bool) -> Iterator[Sequence[Event]]:
        """A line without its end at the end of a file was being written when the process died."""
        if tail and not started and not tail.lstrip().startswith(b"{"):
            self._refuse()
        elif tail:
            try:
                event: Event = _DECODER.decode(tail)
            except msgspec.DecodeError:
                return
            yield [event]

    def _refuse(self) -> None:
        """One complaint for the whole file: one for each line would say less."""
        self._complain(f"{self._path.name} is not a history: its first line is no event; give what was recorded")

    def _decode(self, lines: bytes) -> Sequence[Event]:
        try:
            events: Sequence[Event] = _DECODER.decode_lines(lines)
        except msgspec.DecodeError:
            events = [event for line in lines.split(b"\n") if (event := self._decode_one(line)) is not None]
        if events:
            self._last_n = events[-1].n
        return events

    def _decode_one(self, line: bytes) -> Event | None:
        if not line.strip():
            return None
        try:
            event: Event = _DECODER.decode(line)
        except msgspec.DecodeError as error:
            self._complain(f"{self._path.name}: cannot read the line after n={self._last_n}: {error}: {line[:120]!r}")
            return None
        self._last_n = event.n
        return event


def _is_event(line: bytes) -> bool:
    try:
        _DECODER.decode(line)
    except msgspec.DecodeError:
        return False
    return True
