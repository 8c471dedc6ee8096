"""A pipeline's checkpoint: which run may use it, its identity, its epochs, and Spark's part of it.

    <checkpoint>/offsets, commits         Spark's: the batches that were planned, and those that are done
    <checkpoint>/dead_letters             dead letters, unless the pipeline declares a sink for them
    <checkpoint>/lanemq/                  the pipeline's own part
        lock, pipeline.json, epoch        the running process, the identity, the epochs of all runs
        running/<epoch>/                  the folder that state is renamed out of
        stage/, decided/                  the stage's state, and decided batches

Invariants: one run at a time, in any process, and the death of the process frees the checkpoint; a checkpoint belongs
to one pipeline; every start has a higher epoch than all before, which no copy of the checkpoint shares; the number of a
retry pass is never given to other work; a run that was replaced changes no state.
"""

import fcntl
import json
import os
import shutil
import socket
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import CheckpointInUse, SinkFenced, StateLost, UsageError
from lanemq.pipelines.atomic_files import sync, write_durably
from lanemq.pipelines.ports import (
    NUMBERS_PER_BATCH,
    Runs,
    batch_number,
    epoch_of_start,
    read_runs,
    run_name,
    start_of,
)
from lanemq.spark.offsets import Positions, from_json

OWN_FOLDER: Final = "lanemq"
"""The pipeline's own folder, beside Spark's."""
MAX_LOCK_ATTEMPTS: Final = 4
"""With 50 ms between them, because `holder_of` takes the lock for a moment to look at it."""
_RUNNING: Final = "running"


class Checkpoint:
    """A checkpoint that is held by one run, from its start to its end."""

    def __init__(
        self, folder: Path, name: str, source: Mapping[str, str] | None = None, clock: Clock | None = None
    ) -> None:
        self.folder = folder
        self.name = name
        self.log = SparkLog(folder)
        self._own = folder / OWN_FOLDER
        self._own.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self._own / "lock", folder, clock or SystemClock())
        try:
            self.query = self._identify(name, source or {})
            former = _read_epochs(self._own / "epoch")
            self.epoch = epoch_of_start(start_of(former.newest) + 1, int.from_bytes(os.urandom(4)))
            self.runs = former.with_next(self.epoch)
            write_durably(self._own / "epoch", self.runs.text().encode())
            _take_over(self._own / _RUNNING, self.epoch)
        except BaseException:
            self.close()
            raise

    @property
    def stage_folder(self) -> Path:
        return stage_folder(self.folder)

    @property
    def dead_letters_folder(self) -> Path:
        return dead_letters_folder(self.folder)

    @property
    def decisions_folder(self) -> Path:
        return self._own / "decided"

    @property
    def sink_positions_file(self) -> Path:
        return self._own / "sink_positions.json"

    @property
    def queues_file(self) -> Path:
        """The queues that the stage's state belongs to."""
        return self._own / "queues.json"

    def refuse_if_replaced(self) -> None:
        """`SinkFenced` if another run was started, which is possible on a file system whose locks do not hold."""
        newest = _read_epochs(self._own / "epoch").newest
        if newest != self.epoch:
            raise SinkFenced(
                f"run {run_name(self.epoch)} of checkpoint {self.folder} was replaced by run {run_name(newest)}: "
                f"the older run may decide nothing more; stop it"
            )

    def next_retry_pass(self, spark_batch: int) -> int | None:
        """A number for a retry pass after this Spark batch, never given before; None if there are no more."""
        path = self._own / "retry_pass"
        last = _read_number(path)
        number = last + 1 if last // NUMBERS_PER_BATCH == spark_batch else batch_number(spark_batch, 1)
        if number // NUMBERS_PER_BATCH != spark_batch:
            return None
        write_durably(path, str(number).encode())
        return number

    def close(self) -> None:
        """Release the checkpoint. May be called again."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _identify(self, name: str, source: Mapping[str, str]) -> str:
        known = own_identity(self.folder, name)
        query = known.query if known is not None else uuid.uuid4().hex
        content = json.dumps({"query": query, "name": name, "source": dict(source)})
        write_durably(self._own / "pipeline.json", content.encode())
        return query


def stage_folder(checkpoint: Path) -> Path:
    """Where the stage keeps its state."""
    return checkpoint / OWN_FOLDER / "stage"


def dead_letters_folder(checkpoint: Path) -> Path:
    """Where dead letters are if the pipeline declares no sink for them."""
    return checkpoint / "dead_letters"


@dataclass(frozen=True, slots=True)
class CheckpointIdentity:
    """The pipeline that a checkpoint belongs to."""

    query: str
    """The name by which sinks know its batches."""
    name: str
    source: Mapping[str, str]
    """The source's options at the last start, so that lag can be shown without the declaration."""


def identity_of(folder: Path) -> CheckpointIdentity | None:
    """The pipeline that a checkpoint belongs to; None before its first start."""
    path = folder / OWN_FOLDER / "pipeline.json"
    try:
        found = json.loads(path.read_bytes())
        return CheckpointIdentity(str(found["query"]), str(found["name"]), dict(found.get("source", {})))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateLost(f"{path} cannot be read: {error!r}; restore the checkpoint from a copy") from error


def need_identity(folder: Path) -> CheckpointIdentity:
    """Like `identity_of`, but `UsageError` if there was no start."""
    known = identity_of(folder)
    if known is None:
        raise UsageError(
            f"{folder} is not a checkpoint of a pipeline: it was never started, or its checkpoint is another folder"
        )
    return known


def own_identity(folder: Path, name: str) -> CheckpointIdentity | None:
    """Like `identity_of`, but `UsageError` if the checkpoint does not belong to the pipeline of this name.

    `StateLost` if part of the checkpoint was deleted.
    """
    known = identity_of(folder)
    _refuse_parts(folder, known is not None)
    if known is None and SparkLog(folder).planned() is not None:
        raise UsageError(
            f"checkpoint {folder} belongs to a Spark query that is not a pipeline, or its folder {OWN_FOLDER} was "
            f"deleted: choose an empty folder for {name!r}, or restore {OWN_FOLDER} from a copy"
        )
    if known is not None and known.name != name:
        raise UsageError(
            f"checkpoint {folder} belongs to pipeline {known.name!r}: choose another folder for {name!r}, "
            f"or give it its old name"
        )
    return known


def _refuse_parts(folder: Path, identified: bool) -> None:
    """`StateLost` if files of a checkpoint are missing that its other files prove to have existed."""
    spark = SparkLog(folder)
    planned, done = spark.planned(), spark.done()
    if not identified and (folder / OWN_FOLDER / "epoch").exists():
        missing, proof = f"{OWN_FOLDER}/pipeline.json", f"{OWN_FOLDER}/epoch is there"
    elif identified and planned is not None and not (folder / OWN_FOLDER / "epoch").exists():
        missing, proof = f"{OWN_FOLDER}/epoch", f"batch {planned} was planned"
    elif identified and done is not None and (planned is None or planned < done):
        missing, proof = f"offsets/{done}", f"batch {done} is done"
    else:
        return
    raise StateLost(
        f"part of checkpoint {folder} was deleted: {missing} is missing, although {proof}. Restore the whole folder "
        f"from one copy, or begin with an empty checkpoint and an empty sink"
    )


def epoch_of(folder: Path) -> int:
    """How often the pipeline was started."""
    return start_of(_read_epochs(folder / OWN_FOLDER / "epoch").newest)


def _read_epochs(path: Path) -> Runs:
    try:
        return read_runs(path.read_text("ascii"))
    except FileNotFoundError:
        return Runs(())
    except ValueError as error:
        raise StateLost(f"{path} holds no number: restore the checkpoint from a copy") from error


def _read_number(path: Path) -> int:
    try:
        return int(path.read_text("ascii"))
    except FileNotFoundError:
        return 0
    except ValueError as error:
        raise StateLost(f"{path} holds no number: restore the checkpoint from a copy") from error


def holder_of(folder: Path) -> str | None:
    """The process that runs the pipeline now; None if there is none."""
    try:
        fd = os.open(folder / OWN_FOLDER / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read_holder(fd)
    finally:
        os.close(fd)
    return None


def in_use(folder: Path, holder: str) -> CheckpointInUse:
    return CheckpointInUse(
        f"checkpoint {folder} is used by another run ({holder}): stop that one, or choose another checkpoint"
    )


def _locked(path: Path, folder: Path, clock: Clock) -> int:
    """The open lock file. The system drops the lock when the process ends, however it ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    if not _try_lock(fd):
        holder = _read_holder(fd)
        os.close(fd)
        raise in_use(folder, holder)
    since = datetime.fromtimestamp(clock.wall() // 1000, UTC).astimezone().isoformat(" ")
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode(), 0)
    return fd


def _try_lock(fd: int) -> bool:
    for _ in range(MAX_LOCK_ATTEMPTS):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            threading.Event().wait(0.05)
        else:
            return True
    return False


def _read_holder(fd: int) -> str:
    return os.pread(fd, 500, 0).decode("utf-8", "replace").strip() or "unknown"


# State is written in the run's own folder and renamed out of it; a newer run moves that folder away when it starts.
# Both are single renames and one of them comes first, so no lock is needed, which matters on a shared disk whose locks
# do not hold.


def _take_over(running: Path, epoch: int) -> None:
    """Make the folder of this run and move those of older runs away."""
    (running / str(epoch)).mkdir(parents=True, exist_ok=True)
    for folder in running.iterdir():
        if folder.name.isdecimal() and int(folder.name) < epoch:
            with suppress(FileNotFoundError):  # an even newer run was faster
                folder.rename(running / f".{folder.name}-{os.urandom(4).hex()}")
    for left in running.glob(".*"):
        shutil.rmtree(left, ignore_errors=True)


def write_as(epoch: int, stage_folder: Path, path: Path, content: bytes) -> None:
    """Write a stage's file durably; `SinkFenced` if the run was replaced.

    A stage that is used without a checkpoint has no run folder and just writes.
    """
    running = stage_folder.parent / _RUNNING
    if not running.is_dir():
        write_durably(path, content)
        return
    try:
        write_durably(path, content, running / str(epoch))
    except FileNotFoundError:
        raise SinkFenced(
            f"run {run_name(epoch)} of the pipeline with state in {stage_folder} was replaced, so its results do not "
            f"count; stop it"
        ) from None


class SparkLog:
    """Spark's part of a checkpoint: which batches were planned, which are done, and where they end.

    Reads the files themselves: after a crash only they are right, and for Spark a batch is done when its file is
    there, not when our code has returned.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._offsets = checkpoint / "offsets"
        self._commits = checkpoint / "commits"

    def planned(self) -> int | None:
        """The last batch whose end is fixed; None before the first."""
        return _last(self._offsets)

    def done(self) -> int | None:
        """The last batch that Spark will not repeat; None before the first."""
        return _last(self._commits)

    def is_done(self, batch: int) -> bool:
        return (self._commits / str(batch)).exists()

    def sync(self, batch: int) -> None:
        """Write the plan of a batch to the disk.

        Spark does not wait for that: after a power cut it would plan other messages under the number of a batch that
        the sink has.
        """
        for path in (self._offsets / str(batch), self._offsets):
            sync(path)

    def end_of(self, batch: int) -> Positions:
        """Where a planned batch ends, in every queue."""
        path = self._offsets / str(batch)
        try:
            lines = path.read_text("utf-8").splitlines()
            return from_json(json.loads(lines[2])) if lines[2] != "-" else {}
        except (OSError, IndexError, ValueError) as error:
            raise StateLost(f"{path} cannot be read: {error}; restore the checkpoint from a copy") from error


def _last(folder: Path) -> int | None:
    try:
        return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=None)
    except FileNotFoundError:
        return None
