"""What operators request of a stage, whether or not the pipeline runs: held lanes and dead letters to try again.

A request is a file in the stage's folder; writing it needs no Spark and no broker. The next retry pass takes it; a
pipeline that is down takes it when it starts.

    requests/<id>.json                  a request about held and parked lanes
    redrives/asked/<id>.dead_letters    dead letters with their messages, not finished by a retry pass
    redrives/done/<id>.dead_letters     finished ones, without their messages
    redrives/lock                       held while an operator's request is written

Invariants: a dead letter is in at most one file, so it is in at most one retry pass; messages stay until the state
after their pass counts, so that a repeated pass is the same; `ask` returns only when the request is on disk.
"""

import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from lanemq.clock import SystemClock
from lanemq.files import StorePath, create, read_json, sync, write_durably, write_json
from lanemq.model.errors import InvalidOption, StateLost
from lanemq.pipelines.stages.transitions.messages import WaitingMessage
from lanemq.pipelines.stages.transitions.shard import keyless
from lanemq.wire.prepared import prepare_structs

Action: TypeAlias = Literal["redrive", "discard", "discard_first"]


class OperatorRequest(msgspec.Struct, frozen=True):
    """A request about one lane, or about all that are held or parked (`lane` None)."""

    id: str
    action: Action
    lane: str | None
    asked: int
    """Wall time, milliseconds."""


def request_redrive(stage_folder: StorePath, key: str | None = None, *, everything: bool = False) -> str:
    """Requests that the key's messages are tried again in order, before newer ones. Returns the request's id."""
    return _request(stage_folder, "redrive", key, everything=everything)


def request_discard(
    stage_folder: StorePath, key: str | None = None, *, everything: bool = False, first_only: bool = False
) -> str:
    """Requests that the key's waiting messages become dead letters, so that the key continues.

    `first_only`: only the one that failed. Returns the request's id.
    """
    return _request(stage_folder, "discard_first" if first_only else "discard", key, everything=everything)


def _request(stage_folder: StorePath, action: Action, key: str | None, *, everything: bool) -> str:
    if (key is None) != everything:
        raise InvalidOption(f"{action}: name one key, or give everything=True, and not both")
    if not stage_folder.is_dir():
        raise InvalidOption(f"{stage_folder} is not a stage's folder: check the path of the checkpoint")
    asked = SystemClock().wall()
    request = OperatorRequest(f"{asked}-{os.urandom(4).hex()}", action, key, asked)
    write_json(_path(stage_folder, request), request)
    return request.id


def pending_requests(stage_folder: StorePath) -> list[OperatorRequest]:
    """Requests that no retry pass has taken yet."""
    folder = stage_folder / "requests"
    names = sorted(path.name for path in folder.glob("*.json")) if folder.is_dir() else []
    return [read_json(folder / name, OperatorRequest) for name in names]


def remove_request(stage_folder: StorePath, request: OperatorRequest) -> None:
    """Removes a request that a retry pass has carried out."""
    _path(stage_folder, request).unlink(missing_ok=True)


def _path(stage_folder: StorePath, request: OperatorRequest) -> StorePath:
    return stage_folder / "requests" / f"{request.id}.json"


@dataclass(frozen=True, slots=True)
class RequestedActions:
    """What one retry pass does with held and parked lanes."""

    named: Mapping[str, Action]
    everything: Action | None = None
    """For the lanes that are not named."""

    @classmethod
    def of(cls, requests: Iterable[OperatorRequest]) -> "RequestedActions":
        """Of two requests for a lane, the later one counts."""
        asked = sorted(requests, key=lambda request: (request.asked, request.id))
        everything = [request.action for request in asked if request.lane is None]
        named = {request.lane: request.action for request in asked if request.lane is not None}
        return cls(named, everything[-1] if everything else None)

    def for_lane(self, name: str) -> Action | None:
        """What to do with a lane; None if nothing was requested."""
        return self.named.get(name, self.everything)


NO_ACTIONS = RequestedActions({})


# Dead letters that are given to the step again.

DEAD_LETTERS_PER_FILE: Final = 5_000
BYTES_PER_FILE: Final = 16 << 20
MAX_LOCK_SECONDS: Final = 60
"""How long a request may take to be written to a remote store before another one ignores its lock."""
FILES_PER_PASS: Final = 4
"""Files of one retry pass. A task reads all of them to find its own dead letters; it holds one file and all rows in
memory."""

Identity: TypeAlias = tuple[str, str, int, int, int]
"""Topic, broker, queue, offset, and the unit of work that made the message a dead letter. A message that fails again
after a redrive is another dead letter."""


class RedrivenDeadLetter(msgspec.Struct, array_like=True, frozen=True):
    """A dead letter that is given to the step again."""

    key: str | None
    batch: int
    """The unit of work that made it a dead letter."""
    message: WaitingMessage

    @property
    def identity(self) -> Identity:
        """What tells it from other dead letters."""
        message = self.message
        return message.topic, message.broker, message.queue_id, message.offset, self.batch

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return f"{self.message.topic}/{self.message.broker}/{self.message.queue_id}"

    @property
    def lane(self) -> str:
        """The name of its lane."""
        return keyless(self.queue) if self.key is None else self.key


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final[Callable[[bytes], list[RedrivenDeadLetter]]] = msgspec.msgpack.Decoder(list[RedrivenDeadLetter]).decode


class Redrives:
    """The redrives of one stage. Operators ask from any process; the run that owns the checkpoint carries them out."""

    def __init__(self, stage_folder: StorePath) -> None:
        self._folder = stage_folder / "redrives"
        self._asked, self._done = self._folder / "asked", self._folder / "done"

    def ask(self, dead_letters: Iterable[RedrivenDeadLetter]) -> set[Identity]:
        """Requests dead letters, in their order. Returns those that were not requested before; only these are taken.

        Writes them in parts while `dead_letters` is read.
        """
        self._asked.mkdir(parents=True, exist_ok=True)
        with self._locked():
            taken = self.pending_dead_letters() | self.done_dead_letters()
            fresh: set[Identity] = set()
            asked = f"{SystemClock().wall()}-{os.urandom(4).hex()}"
            for at, part in enumerate(_parts(each for each in dead_letters if each.identity not in taken)):
                write_durably(self._asked / f"{asked}-{at:06}.dead_letters", _encode(part))
                fresh |= {each.identity for each in part}
        return fresh

    def pending(self) -> list[str]:
        """Ids of files that no retry pass has finished, in the order in which they were requested."""
        return sorted(path.stem for path in self._asked.glob("*.dead_letters")) if self._asked.is_dir() else []

    def pending_dead_letters(self) -> set[Identity]:
        """Requested dead letters. To be read before `done_dead_letters`, because files move from here to there."""
        return self._identities(self._asked)

    def done_dead_letters(self) -> set[Identity]:
        """Dead letters that retry passes have finished."""
        return self._identities(self._done)

    def dead_letters(self, ident: str) -> list[RedrivenDeadLetter]:
        """The dead letters of one file."""
        path = self._asked / f"{ident}.dead_letters"
        try:
            return _read(path)
        except FileNotFoundError:
            raise StateLost(
                f"{path} is missing: another program removed it. Restore the checkpoint's folder from a copy"
            ) from None

    def carried_out(self, ident: str) -> None:
        """Moves a file to those that are done: the state after its pass counts. May be repeated.

        The bodies are removed; the identities stay, so that none is redriven twice.
        """
        self._done.mkdir(parents=True, exist_ok=True)
        source = self._asked / f"{ident}.dead_letters"
        try:
            bare = [msgspec.structs.replace(each, message=_without_body(each.message)) for each in _read(source)]
        except FileNotFoundError:
            return
        write_durably(self._done / source.name, _encode(bare))
        source.unlink(missing_ok=True)
        sync(self._asked)

    def _identities(self, folder: StorePath) -> set[Identity]:
        found: set[Identity] = set()
        for path in folder.glob("*.dead_letters") if folder.is_dir() else ():
            try:
                found.update(each.identity for each in _read(path))
            except FileNotFoundError:  # it was moved to done
                continue
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._folder / "lock"
        if not isinstance(lock, Path):
            with _locked_remotely(lock):
                yield
            return
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


@contextmanager
def _locked_remotely(lock: StorePath) -> Iterator[None]:
    """Hold a lock file. One that a dead process left is removed after `MAX_LOCK_SECONDS`."""
    clock = SystemClock()
    mine = f"{clock.wall()} {os.urandom(8).hex()}".encode()
    while not create(lock, mine):
        with suppress(FileNotFoundError):
            if clock.wall() - int(lock.read_bytes().split()[0]) > MAX_LOCK_SECONDS * 1000:
                lock.unlink(missing_ok=True)
        threading.Event().wait(0.2)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _read(path: StorePath) -> list[RedrivenDeadLetter]:
    try:
        return _decode(path.read_bytes())
    except (IsADirectoryError, msgspec.MsgspecError) as error:
        raise StateLost(f"{path} is damaged ({error}): restore the checkpoint's folder from a copy") from error


def _without_body(message: WaitingMessage) -> WaitingMessage:
    return msgspec.structs.replace(message, value=None)


def _parts(dead_letters: Iterable[RedrivenDeadLetter]) -> Iterator[list[RedrivenDeadLetter]]:
    part: list[RedrivenDeadLetter] = []
    size = 0
    for each in dead_letters:
        part.append(each)
        size += len(each.message.value or b"")
        if len(part) >= DEAD_LETTERS_PER_FILE or size >= BYTES_PER_FILE:
            yield part
            part, size = [], 0
    if part:
        yield part


prepare_structs(__name__)  # pages of the console read requests in several threads
