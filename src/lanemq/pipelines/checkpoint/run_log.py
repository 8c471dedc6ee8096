"""A log that only the newest of several runs can add to: what fences a checkpoint and a folder of Parquet files.

    <folder>/<n>     entry n: the runs so far, and everything that they have recorded

A run begins by creating the entry after the newest one, and records something by creating the next. A store creates a
file of one name at most once: a local disk by a link, HDFS by a rename that refuses an existing target, an object store
by a conditional put. So of two runs only one gets a number, and a run that was replaced finds its next number taken. No
lock is needed, and a run that hangs blocks no other.

The newest entry has everything, so those before it are removed. The entry by which a run began is emptied instead,
because the run before it would try to create it.

Invariants: a run that was replaced records nothing; an entry is there completely or not at all; what an entry has was
recorded by runs that were the newest at that time.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from lanemq.files import StorePath, create, write_durably
from lanemq.model.errors import SinkFenced, StateLost
from lanemq.pipelines.batches import MAX_RUNS, Runs, run_name

NO_RUN: Final = 0
"""In place of an epoch: the entry shuts out all runs so far, and begins none."""


class _Began(msgspec.Struct, frozen=True, array_like=True):
    entry: int
    epoch: int


class _Entry(msgspec.Struct, frozen=True):
    began: tuple[_Began, ...]
    """The runs so far, the newest last."""
    number: int
    """Makes the content unlike that of every other entry, so that a repeated creation is recognised."""
    records: dict[str, bytes]


_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(_Entry).decode
_EMPTY: Final = _Entry((), -1, {})


class LogContent:
    """What the newest entry of a log has."""

    def __init__(self, entry: _Entry) -> None:
        self.runs = Runs(tuple(each.epoch for each in entry.began if each.epoch != NO_RUN))
        self.records: Mapping[str, bytes] = entry.records


def read_log(folder: StorePath) -> LogContent:
    """What was recorded last, by whichever run. Changes nothing."""
    return LogContent(_newest(folder))


class RunLog:
    """The log as the run sees it that began with this object. Used by one thread at a time."""

    def __init__(self, folder: StorePath, next_epoch: Callable[[Runs], int]) -> None:
        """Begin a run, which replaces all before. `next_epoch`: the epoch of the run that follows these; may refuse."""
        self.folder = folder
        while True:
            last = _newest(folder)
            epoch = next_epoch(LogContent(last).runs)
            began = (*last.began, _Began(last.number + 1, epoch))[-MAX_RUNS:]
            self._entry = _Entry(began, last.number + 1, last.records)
            if create(self._path(last.number + 1), _pack(self._entry)) and self._is_part_of(_newest(folder)):
                break
        self.epoch = epoch
        self.runs = LogContent(self._entry).runs
        self._tidy(last)
        for left in list(_numbers(folder)):
            if left < last.number and left not in {each.entry for each in began}:
                self._path(left).unlink(missing_ok=True)

    @property
    def records(self) -> Mapping[str, bytes]:
        return self._entry.records

    def record(self, name: str, content: bytes) -> None:
        """Record something under a name, durably, in place of what has the name; `SinkFenced` if the run was replaced.

        Does nothing if it is recorded already.
        """
        last = self._entry
        if last.records.get(name) == content:
            return
        entry = _Entry(last.began, last.number + 1, last.records | {name: content})
        if not create(self._path(entry.number), _pack(entry)):
            raise self._replaced()
        self._entry = entry
        self._tidy(last)

    def refuse_if_replaced(self) -> None:
        """`SinkFenced` if another run has begun."""
        if max(_numbers(self.folder), default=-1) != self._entry.number:
            raise self._replaced()

    def _is_part_of(self, newest: _Entry) -> bool:
        """Whether the run has begun. If not, its number was that of an old entry, removed after others had followed."""
        if self._entry.began[-1] in newest.began:
            return True
        self._path(self._entry.number).unlink(missing_ok=True)
        return False

    def _tidy(self, entry: _Entry) -> None:
        """Remove an entry that is not the newest any more."""
        if any(each.entry == entry.number for each in self._entry.began):
            write_durably(self._path(entry.number), b"")
        elif entry is not _EMPTY:
            self._path(entry.number).unlink(missing_ok=True)

    def _path(self, number: int) -> StorePath:
        return self.folder / _name(number)

    def _replaced(self) -> SinkFenced:
        newest = read_log(self.folder).runs.newest
        by = f" by run {run_name(newest)}" if newest != self.epoch else ""
        return SinkFenced(
            f"run {run_name(self.epoch)} of the pipeline with its log in {self.folder} was replaced{by}: the older run "
            f"may record nothing more; stop it"
        )


def shut_runs_out(folder: StorePath) -> None:
    """Let no run that has begun so far record anything. A later one may."""
    if next(_numbers(folder), None) is not None:
        RunLog(folder, lambda runs: NO_RUN)


def _newest(folder: StorePath) -> _Entry:
    looked = -1
    while True:
        number = max(_numbers(folder), default=-1)
        if number == -1:
            return _EMPTY
        path = folder / _name(number)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            content = b""
        except IsADirectoryError as error:
            raise _damaged(path, error) from error
        if content:
            break
        # It was the newest when the folder was listed, and a run has followed. If not, its successor was deleted.
        if number == looked:
            raise StateLost(f"the entry after {path} was deleted: restore the folder from a copy")
        looked = number
    try:
        return _unpack(content)
    except msgspec.MsgspecError as error:
        raise _damaged(path, error) from error


def _damaged(path: StorePath, error: Exception) -> StateLost:
    return StateLost(f"{path} is damaged ({error}): restore the folder from a copy")


def _numbers(folder: StorePath) -> Iterator[int]:
    return (int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal())


def _name(number: int) -> str:
    return f"{number:012}"
