"""A log of what really happened, for the checker.

One file per process, one JSON object per line. Each line is appended to the file before the call returns, so a killed
process loses nothing that it had recorded. An event is recorded before others can see its consequences: a turn's start
before the handler runs, its end before the offset is committed, a release before the unlock request is sent. So the
order of the lines is the order of the events.

Off costs one attribute check: `if history.on: history.turn(...)`.

The checker reads this format with definitions of its own and never imports this module.
"""

import contextlib
import os
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Literal, TypedDict, Unpack, cast

import msgspec

from lanemq.forking import UNDERWAY, tell_child, tell_now
from lanemq.model.names import DEFAULT_BROKER_NAME

Role = Literal["producer", "consumer", "broker", "other"]
Outcome = Literal["ok", "retry", "abandoned", "late"]

_Fields = dict[str, str | int]
_ENCODE = msgspec.json.Encoder().encode
MAX_WHY_CHARS = 500
"""Characters of an error that the end of a turn keeps. A key that fails for hours records its error with every attempt,
so more would fill the disk; less would cut off what went wrong."""
_LONGEST_LINE = 64 * 1024
"""Limit of the last line that is read again; a longer one is skipped for the line before it."""


class AboutWriter(TypedDict, total=False):
    """What the first line of a history says of its process, beside its name."""

    role: Role
    """Who writes; a broker's lines about leases count as exact. Default: `other`."""
    run: str
    """What ties the files of a run together, for people."""
    machine: str
    """Whose clock `now_ns` is (`clock.machine_of`). Times of two machines cannot be compared."""


class History:
    """The history of one process, safe to use from any thread.

    Args:
        path: The file to append to; a second life of a process may use the same one.
        process: A name no other process of the run has.
        now_ns: Nanoseconds of the machine's monotonic clock, the same for all processes of the run. A
            simulation passes a counter that grows with every call.
        about: What else the first line says.
    """

    on = True
    _in_child = False
    _unfinished_line = False
    """Whether the file ends within a line, because its writer was killed or the disk was full."""
    suffix = ""
    """What the name of the process has at its end in a child that was forked with this history."""

    def __init__(self, path: Path, process: str, now_ns: Callable[[], int], **about: Unpack[AboutWriter]) -> None:
        self.now = now_ns
        self._path, self._process, self._about = path, process, about
        self._open_file(path, process)
        tell_child(self)

    def _open_file(self, path: Path, process: str) -> None:
        self._n = 0
        self._lock = Lock()
        file = cast(BinaryIO, path.open("ab", buffering=0))
        weakref.finalize(self, file.close).atexit = False  # one that is never closed ends with its last user
        self._file: BinaryIO | None = file
        self._unfinished_line = _ends_within_a_line(path)
        self._begin(process, **self._about)

    def _begin(self, process: str, *, role: Role = "other", run: str = "", machine: str = "") -> None:
        self._write("begin", {"name": process, "role": role, "run": run, "machine": machine})

    def forked(self) -> None:
        """In a child process: continues in a file of its own, which is made by its first line."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._lock = Lock()
            self._in_child, self.suffix = True, f".{os.getpid()}"

    def close(self) -> None:
        self._in_child = False
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    # --- producer ---

    def send(self, topic: str, key: str, id: str, *, delay: int = 0, tag: str = "") -> None:
        """A message was accepted by the producer, under the lock that decides its place in the lane.

        `delay`: the delay level. The broker stores a delayed message when its delay is over.
        """
        fields: _Fields = {"topic": topic, "key": key, "id": id}
        if delay:
            fields["delay"] = delay
        if tag:
            fields["tag"] = tag
        self._write("send", fields)

    def acked(
        self, topic: str, key: str, id: str, queue: int, offset: int, *, broker: str = DEFAULT_BROKER_NAME
    ) -> None:
        more: _Fields = {"offset": offset, "key": key, "id": id}
        self._write("acked", _queue_fields(topic, broker, queue) | more)

    def send_failed(self, topic: str, key: str, id: str) -> None:
        """A send failed; recorded only if the message is certainly not stored."""
        self._write("send_failed", {"topic": topic, "key": key, "id": id})

    def send_unknown(self, topic: str, key: str, id: str) -> None:
        self._write("send_unknown", {"topic": topic, "key": key, "id": id})

    # --- consumer ---

    def turn(
        self,
        place: "Place",
        key: str,
        id: str,
        *,
        epoch: int = 0,
        attempt: int = 0,
        batch: int = 0,
        copy: bool = False,
    ) -> None:
        """Before the handler is called; once per message, with one `batch` number if a call gets several.

        `copy`: an operator or a mirror sent it, and records no sends.
        """
        more: _Fields = {"key": key, "id": id, "epoch": epoch, "attempt": attempt, "batch": batch}
        self._write("turn", place.fields() | more | {"copy": 1} if copy else place.fields() | more)

    def turn_end(
        self, place: "Place", key: str, outcome: Outcome, *, epoch: int = 0, ended: int = 0, why: str = ""
    ) -> None:
        """After the handler returned, at the time `ended`, and the lease was checked again.

        `abandoned` when the queue was lost and the result thrown away; `late` when it succeeded, but the lease was
        over by then and may or may not be given to the same member again. `why`: the error of a turn that failed, for
        people; the line has it only if there is one.
        """
        more: _Fields = {"key": key, "outcome": outcome, "epoch": epoch, "ended": ended}
        if why:
            more["why"] = why if len(why) <= MAX_WHY_CHARS else f"{why[: MAX_WHY_CHARS - 1]}…"
        self._write("turn_end", place.fields() | more)

    def filtered(self, place: "Place", tags: Collection[str]) -> None:
        """From `place` on, the member gets only messages with one of these tags."""
        self._write("filtered", place.fields() | {"tags": "||".join(sorted(tags))})

    def dead_lettered(self, place: "Place", key: str, id: str, attempts: int) -> None:
        """When the dead letter is stored, not when it is decided."""
        self._write("dead_lettered", place.fields() | {"key": key, "id": id, "attempts": attempts})

    def skipped(self, place: "Place", key: str, reason: str) -> None:
        """A message was skipped on purpose: by a tag filter, by an operator, or sent back to the retry topic."""
        self._write("skipped", place.fields() | {"key": key, "reason": reason})

    def parked(self, place: "Place", key: str) -> None:
        """A lane was parked at the broker, and that is on disk. Member and broker may both record it."""
        self._write("parked", place.fields() | {"key": key})

    def redriven(self, place: "Place", key: str, last: int) -> None:
        """The messages of a parked lane from `place` to the offset `last` go to the queue's owner, to run again."""
        self._write("redriven", place.fields() | {"key": key, "last": last})

    def discarded(self, place: "Place", key: str) -> None:
        """An operator discarded a parked message."""
        self._write("discarded", place.fields() | {"key": key})

    def committed(self, place: "Place", *, epoch: int = 0, asked: int = 0) -> None:
        """Accepted; `place.offset` is the next one to read, `asked` is `now()` from before the request."""
        self._write("committed", place.fields() | {"epoch": epoch, "asked": asked})

    def commit_refused(self, place: "Place", reason: str, *, epoch: int = 0, asked: int = 0) -> None:
        self._write("commit_refused", place.fields() | {"epoch": epoch, "asked": asked, "reason": reason})

    def effect(self, place: "Place", key: str, sink: str, *, epoch: int = 0, asked: int = 0) -> None:
        """The sink took the result. A sink that saw a repeat and did nothing records nothing."""
        self._write("effect", place.fields() | {"key": key, "sink": sink, "epoch": epoch, "asked": asked})

    # --- leases: member and broker both may write them ---

    def lease_granted(self, lease: "RecordedLease", *, until: int = 0, asked: int = 0) -> None:
        """`until` is when the writer stops using the lease, on the clock of `now()`."""
        self._write("lease_granted", lease.fields() | {"until": until, "asked": asked})

    def lease_renewed(self, lease: "RecordedLease", *, until: int = 0, asked: int = 0) -> None:
        self._write("lease_renewed", lease.fields() | {"until": until, "asked": asked})

    def lease_released(self, lease: "RecordedLease") -> None:
        """A member records it before the unlock request leaves."""
        self._write("lease_released", lease.fields())

    def lease_expired(self, lease: "RecordedLease") -> None:
        self._write("lease_expired", lease.fields())

    # --- broker, operator, test harness ---

    def reset(self, place: "Place", reason: str, *, kept: bool = False, epoch: int = 0) -> None:
        """The group's position was set by name, or it starts here for the first time.

        `kept`: set by a member without a lease, which does not know what others have finished.
        """
        self._write("reset", place.fields() | {"reason": reason, "kept": int(kept), "epoch": epoch})

    def subscribed(
        self, group: str, topic: str, queue: int, tags: str, *, lost: str = "", broker: str = DEFAULT_BROKER_NAME
    ) -> None:
        """From now on a member of the group selects these tags, `*` for all; members with fewer must skip none of them.

        Written for every queue of the topic, while members have different tags. `lost` is the member that selected more
        until now, if it did not say that it leaves.
        """
        more: _Fields = {"tags": tags, "lost": lost} if lost else {"tags": tags}
        self._write("subscribed", {"group": group} | _queue_fields(topic, broker, queue) | more)

    def crashed(self, topic: str, queue: int, alive: int, *, broker: str = DEFAULT_BROKER_NAME) -> None:
        """At the start of a broker, for every queue: its previous run ended at `alive` without a clean stop."""
        self._write("crashed", _queue_fields(topic, broker, queue) | {"alive": alive})

    def recovered(self, place: "Place", *, epoch: int = 0, clean: bool = True, alive: int = 0) -> None:
        """The committed offset found at the start of a broker, -1 for none; `alive` as `last_time` finds it.

        Also written by a member that takes a queue of an Apache broker: what it found when it asked, at `alive`.
        """
        self._write("recovered", place.fields() | {"epoch": epoch, "clean": int(clean), "alive": alive})

    def trimmed(self, topic: str, queue: int, offset: int, *, broker: str = DEFAULT_BROKER_NAME) -> None:
        """Retention deletes everything below `offset`."""
        self._write("trimmed", _queue_fields(topic, broker, queue) | {"offset": offset})

    def topic_deleted(self, topic: str) -> None:
        """Before another topic of this name can exist."""
        self._write("topic_deleted", {"topic": topic})

    def stored(
        self, topic: str, key: str, id: str, queue: int, offset: int, *, broker: str = DEFAULT_BROKER_NAME
    ) -> None:
        """One record of the log, read at the end of a run."""
        more: _Fields = {"offset": offset, "key": key, "id": id}
        self._write("stored", _queue_fields(topic, broker, queue) | more)

    def fault(self, kind: str, target: str, phase: Literal["start", "end"]) -> None:
        self._write("fault", {"kind": kind, "target": target, "phase": phase})

    def _write(self, event: str, fields: _Fields) -> None:
        """Number, time and append are one step, so that the lines of a file are in time order."""
        if UNDERWAY:
            tell_now()
        if self._in_child:
            self._in_child = False
            name = self._process + self.suffix
            self._open_file(self._path.with_name(f"{file_name(name)}.jsonl"), name)
        with self._lock:
            if self._file is None:
                return
            line = _ENCODE({"e": event, "n": self._n, "t": self.now(), **fields}) + b"\n"
            if self._unfinished_line:
                line = b"\n" + line
            self._n += 1  # also if it cannot be written: the checker sees the gap
            self._unfinished_line = True
            while line:
                line = line[self._file.write(line) :]
            self._unfinished_line = False


class _Timed(msgspec.Struct):
    """All that is read of a line again."""

    e: str
    t: int


class Place(msgspec.Struct, frozen=True, gc=False):
    """A message, or the next offset, as a group sees it."""

    group: str
    topic: str
    queue: int
    offset: int
    broker: str = DEFAULT_BROKER_NAME

    def fields(self) -> _Fields:
        return {"group": self.group} | _queue_fields(self.topic, self.broker, self.queue) | {"offset": self.offset}


class RecordedLease(msgspec.Struct, frozen=True, gc=False):
    """A queue in the hands of a member, who has the same name in its own lines and in the broker's."""

    group: str
    topic: str
    queue: int
    member: str
    epoch: int = 0
    broker: str = DEFAULT_BROKER_NAME

    def fields(self) -> _Fields:
        more: _Fields = {"member": self.member, "epoch": self.epoch}
        return {"group": self.group} | _queue_fields(self.topic, self.broker, self.queue) | more


def _queue_fields(topic: str, broker: str, queue: int) -> _Fields:
    """Which queue. The default name of a broker is left out: with one LaneMQ broker, every line would repeat it."""
    if broker == DEFAULT_BROKER_NAME:
        return {"topic": topic, "queue": queue}
    return {"topic": topic, "broker": broker, "queue": queue}


def open_history(folder: Path | None, process: str, now_ns: Callable[[], int], **about: Unpack[AboutWriter]) -> History:
    """Opens a history file for this process in the folder; records nothing without a folder."""
    if folder is None:
        return NO_HISTORY
    folder.mkdir(parents=True, exist_ok=True)
    return History(folder / f"{file_name(process)}.jsonl", process, now_ns, **about)


def _ends_within_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def last_time(folder: Path | None, process: str, now: int) -> int:
    """When an earlier run of the process wrote its last line; 0 if there was none since the machine started.

    A run that failed to start does not count.
    """
    path = None if folder is None else folder / f"{file_name(process)}.jsonl"
    if path is None or not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LONGEST_LINE))
        lines = file.read().split(b"\n")
    for line in reversed(lines):
        with contextlib.suppress(msgspec.MsgspecError):
            line_read = msgspec.json.decode(line, type=_Timed)
            if line_read.e != "begin":
                return line_read.t if line_read.t <= now else 0
    return 0


def file_name(process: str) -> str:
    """A process's name as the name of a file, without its ending."""
    return "".join(c if c.isalnum() or c in "-_.@#" else "_" for c in process)


class _NoHistory(History):
    """Records nothing, so that callers need no `None`."""

    on = False

    def __init__(self) -> None:
        self.now = _no_time
        self._file = None
        self._lock = Lock()
        self._n = 0


def _no_time() -> int:
    return 0


NO_HISTORY: History = _NoHistory()
