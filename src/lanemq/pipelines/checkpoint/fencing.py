"""Files that only the newest run of a checkpoint may change, by what the store offers.

A store that renames (local disks, HDFS):

    lanemq/running/<epoch>/         the run's folder: a file is written here and renamed out of it

A newer run moves the older run's folder away, so the older run finds nothing to rename.

An object store, which refuses to create an object that exists:

    lanemq/running/<epoch>/<n>      the run's journal: entry n holds the content of one file
    <file>/<start>-<n>              the versions of a file; the highest counts

A run appends an entry to its journal before it writes the version. A newer run appends an entry that closes the older
run's journal, after it has written the version of the last entry, in case the older run died in between. The older run
can only create the entry after its last one, which is there.

Both are single atomic steps and one of them comes first, so no lock is needed, and a run that hangs blocks no other.

Invariants: a run that was replaced changes no fenced file; a version is written only after its entry, so the highest
version of a file is the last that a run was entitled to write; a journal's last entry is never removed.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

import msgspec

from lanemq.files import StorePath, can_rename, create, remove_tree, write_durably
from lanemq.files.operations import decode_json
from lanemq.model.errors import SinkFenced, StateLost
from lanemq.pipelines.batches import run_name, start_of

S = TypeVar("S", bound=msgspec.Struct)

Write: TypeAlias = Callable[[StorePath, bytes], None]
"""Writes a file; `SinkFenced` if the run was replaced."""

_RUNNING: Final = "running"
_CLOSED_BELOW: Final = "closed_below"


def take_over(own_folder: StorePath, epoch: int) -> None:
    """Let this run write fenced files, and no older one. `own_folder`: the pipeline's part of the checkpoint."""
    running = own_folder / _RUNNING
    if can_rename(running):
        _move_older_away(running, epoch)
    else:
        if (str(own_folder), epoch) not in _JOURNALS:
            _JOURNALS[str(own_folder), epoch] = Journal(own_folder, epoch)
        _close_older(own_folder, epoch)


def known_runs(own_folder: StorePath) -> list[int]:
    """The epochs of the runs that have taken over, without those that were moved away."""
    return [int(each.name) for each in (own_folder / _RUNNING).glob("*") if each.name.isdecimal()]


def fence_all(own_folder: StorePath) -> None:
    """Let no run that has taken over so far write fenced files. A later one may."""
    running = own_folder / _RUNNING
    for epoch in known_runs(own_folder):
        if can_rename(running):
            _move_away(running / str(epoch))
        else:
            _close(own_folder, epoch, 0)


def write_as(epoch: int, stage_folder: StorePath, path: StorePath, content: bytes) -> None:
    """Write a file durably; `SinkFenced` if the run was replaced.

    A stage that is used without a checkpoint has no run and just writes.
    """
    own_folder = stage_folder.parent
    journal = _JOURNALS.get((str(own_folder), epoch))
    running = own_folder / _RUNNING
    if journal is not None:
        journal.write(path, content)
        return
    if not can_rename(path) or not running.is_dir():
        write_durably(path, content)
        return
    try:
        write_durably(path, content, running / str(epoch))
    except FileNotFoundError:
        raise _replaced(epoch, own_folder) from None


def read_fenced(path: StorePath) -> bytes:
    """The content of a file that `write_as` wrote; FileNotFoundError if there is none."""
    if can_rename(path):
        return path.read_bytes()
    newest = max((each.name for each in path.iterdir()), default=None)
    return path.read_bytes() if newest is None else (path / newest).read_bytes()


def read_fenced_json(path: StorePath, kind: type[S]) -> S:
    """Like `read_json`, of a file that `write_as` wrote."""
    return decode_json(path, read_fenced(path), kind)


def remove_fenced(path: StorePath) -> None:
    """Remove a file that `write_as` wrote, if it is there."""
    if can_rename(path):
        path.unlink(missing_ok=True)
    else:
        remove_tree(path)


def _replaced(epoch: int, own_folder: StorePath) -> SinkFenced:
    return SinkFenced(
        f"run {run_name(epoch)} of the pipeline with state in {own_folder} was replaced, so its results do not "
        f"count; stop it"
    )


# Stores that rename.


def _move_older_away(running: StorePath, epoch: int) -> None:
    (running / str(epoch)).mkdir(parents=True, exist_ok=True)
    for folder in running.iterdir():
        if folder.name.isdecimal() and int(folder.name) < epoch:
            _move_away(folder)
    for left in running.glob(".*"):
        remove_tree(left)


def _move_away(folder: StorePath) -> None:
    with suppress(FileNotFoundError):  # an even newer run was faster
        folder.rename(folder.parent / f".{folder.name}-{os.urandom(4).hex()}")


# Stores that do not.


class _Entry(msgspec.Struct, frozen=True):
    run: int
    """The epoch of the run that wrote the entry."""
    path: str = ""
    """The file below the pipeline's own folder; empty if the entry opens or closes the journal."""
    content: bytes = b""
    closes: bool = False


_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(_Entry).decode


class Journal:
    """The journal of the run that is under way in this process."""

    def __init__(self, own_folder: StorePath, epoch: int) -> None:
        self._own_folder = own_folder
        self._epoch = epoch
        self._entries = _entries_of(own_folder, epoch)
        self._next = 0
        self._versions: dict[str, list[StorePath]] = {}
        """The versions of each file that this run has written that are to be removed after the next one."""
        self._append(_Entry(epoch))

    def write(self, path: StorePath, content: bytes) -> None:
        """Append an entry, then write the version of the file that it concerns."""
        relative = str(path).removeprefix(f"{self._own_folder}/")
        number = self._next
        self._append(_Entry(self._epoch, relative, content))
        older = self._versions.get(relative)
        older = list(path.iterdir()) if older is None else older
        version = _version(path, self._epoch, number)
        write_durably(version, content)
        self._versions[relative] = [version]
        for each in older:
            if each.name < version.name:
                each.unlink(missing_ok=True)
        (self._entries / _entry_name(number - 1)).unlink(missing_ok=True)

    def _append(self, entry: _Entry) -> None:
        if not create(self._entries / _entry_name(self._next), _pack(entry)):
            raise _replaced(self._epoch, self._own_folder)
        self._next += 1


_JOURNALS: Final[dict[tuple[str, int], Journal]] = {}
"""By the pipeline's own folder and epoch. A stage knows no more than these of the run that it is part of."""


def _close_older(own_folder: StorePath, epoch: int) -> None:
    """Close the journals of all older runs. `closed_below` spares later starts to look at the journals before it."""
    running = own_folder / _RUNNING
    try:
        closed_below = int((running / _CLOSED_BELOW).read_bytes())
    except FileNotFoundError:
        closed_below = 0
    for folder in list(running.iterdir()):
        if folder.name.isdecimal() and closed_below <= int(folder.name) < epoch:
            _close(own_folder, int(folder.name), epoch)
    write_durably(running / _CLOSED_BELOW, str(max(epoch, closed_below)).encode())


def _close(own_folder: StorePath, older: int, epoch: int) -> None:
    entries = _entries_of(own_folder, older)
    mine: str | None = None
    while True:
        last = max(each.name for each in entries.iterdir())
        if last == mine:
            return
        try:
            entry = _unpack((entries / last).read_bytes())
        except FileNotFoundError:  # the older run is alive and has appended another one
            continue
        except msgspec.MsgspecError as error:
            raise StateLost(f"{entries / last} is damaged ({error}): restore the checkpoint from a copy") from error
        if entry.closes:
            return
        if entry.path:
            write_durably(_version(own_folder / entry.path, older, int(last)), entry.content)
        # If this comes after an entry that the older run has removed again, that run has appended one behind it.
        following = _entry_name(int(last) + 1)
        if create(entries / following, _pack(_Entry(epoch, closes=True))):
            mine = following


def _entries_of(own_folder: StorePath, epoch: int) -> StorePath:
    return own_folder / _RUNNING / str(epoch)


def _entry_name(number: int) -> str:
    return f"{number:012}"


def _version(path: StorePath, epoch: int, number: int) -> StorePath:
    return path / f"{start_of(epoch):012}-{number:012}"
