"""Dead letters that are to be given to the step again: asked for by persons, taken by passes.

Below the stage's place:

    redrives/asked/<id>.letters    letters with their messages, that no pass has finished
    redrives/done/<id>.letters     those that one has; without their messages, once nobody can need them
    redrives/lock                  held while somebody asks

The rules guarded here: a letter is in one file at most, so no two passes ever take it; a pass is the same when it is
repeated, so the messages stay until its intent is gone; whoever asks is answered only when it is on the disk.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from lanemq.clock import SystemClock
from lanemq.model.errors import StateLost
from lanemq.pipelines.atomic_files import sync, write_durably
from lanemq.pipelines.stages.transitions.event import Message
from lanemq.pipelines.stages.transitions.shard import keyless

LETTERS_AT_ONCE: Final = 5_000
BYTES_AT_ONCE: Final = 16 << 20
"""Of one file."""

FILES_AT_ONCE: Final = 4
"""Of one pass: a task holds one file and the rows of all in memory, and reads all to find its own."""

Identity: TypeAlias = tuple[str, str, int, int, int]
"""Topic, broker, queue, offset, and the unit of work that set the message aside: after a redrive it may fail again,
and is then another letter."""


class Letter(msgspec.Struct, array_like=True, frozen=True):
    """A dead letter on its way back."""

    key: str | None
    batch: int
    message: Message

    @property
    def identity(self) -> Identity:
        message = self.message
        return message.topic, message.broker, message.queue_id, message.offset, self.batch

    @property
    def queue(self) -> str:
        return f"{self.message.topic}/{self.message.broker}/{self.message.queue_id}"

    @property
    def lane(self) -> str:
        return keyless(self.queue) if self.key is None else self.key


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final[Callable[[bytes], list[Letter]]] = msgspec.msgpack.Decoder(list[Letter]).decode


class Redrives:
    """Those of one stage. Persons ask from any process; the run that has the checkpoint carries out."""

    def __init__(self, place: Path) -> None:
        self._folder = place / "redrives"
        self._asked, self._done = self._folder / "asked", self._folder / "done"

    def ask(self, letters: Iterable[Letter]) -> set[Identity]:
        """Gives those that nobody had asked for before: only they are taken, in their order, and in parts while they
        are read.
        """
        self._asked.mkdir(parents=True, exist_ok=True)
        with self._alone():
            taken = self.pending_letters() | self.done_letters()
            fresh: set[Identity] = set()
            asked = f"{SystemClock().wall()}-{os.urandom(4).hex()}"
            for at, part in enumerate(_parts(each for each in letters if each.identity not in taken)):
                write_durably(self._asked / f"{asked}-{at:06}.letters", _encode(part))
                fresh |= {each.identity for each in part}
        return fresh

    def pending(self) -> list[str]:
        """Ids of what no pass has finished, in the order in which it was asked."""
        return sorted(path.stem for path in self._asked.glob("*.letters")) if self._asked.is_dir() else []

    def pending_letters(self) -> set[Identity]:
        """What is asked for; to be looked at before `done_letters`, for a file moves from here to there."""
        return self._identities(self._asked)

    def done_letters(self) -> set[Identity]:
        return self._identities(self._done)

    def letters(self, ident: str) -> list[Letter]:
        """Of one file; still there behind a crash between the end of its pass and the end of the pass's intent."""
        for folder in (self._asked, self._done):
            try:
                return _read(folder / f"{ident}.letters")
            except FileNotFoundError:
                continue
        raise StateLost(f"{ident}.letters is missing in {self._folder}: it was removed by somebody else")

    def carried_out(self, ident: str) -> None:
        """The sinks have what came of it; harmless when repeated."""
        self._done.mkdir(parents=True, exist_ok=True)
        source = self._asked / f"{ident}.letters"
        if source.exists():
            source.rename(self._done / source.name)
            sync(self._done)
            sync(self._asked)

    def forget_bodies(self, ident: str) -> None:
        """Its pass will not be repeated: which letters they were is enough, and has to stay."""
        path = self._done / f"{ident}.letters"
        bare = [msgspec.structs.replace(each, message=_without_body(each.message)) for each in _read(path)]
        write_durably(path, _encode(bare))

    def _identities(self, folder: Path) -> set[Identity]:
        found: set[Identity] = set()
        for path in folder.glob("*.letters") if folder.is_dir() else ():
            try:
                found.update(each.identity for each in _read(path))
            except FileNotFoundError:  # it has become done meanwhile
                continue
        return found

    @contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _read(path: Path) -> list[Letter]:
    try:
        return _decode(path.read_bytes())
    except msgspec.MsgspecError as error:
        raise StateLost(f"{path} is damaged ({error}): restore the checkpoint's folder from a copy") from error


def _without_body(message: Message) -> Message:
    return msgspec.structs.replace(message, value=None)


def _parts(letters: Iterable[Letter]) -> Iterator[list[Letter]]:
    part: list[Letter] = []
    size = 0
    for each in letters:
        part.append(each)
        size += len(each.message.value or b"")
        if len(part) >= LETTERS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part
