"""A pipeline's own part of its checkpoint: who may use it, what it is called, and how often it was started.

The rules guarded here: one run at a time, in whatever process, and a run that was killed frees it; a checkpoint keeps
its identity and belongs to one pipeline; every start has a higher epoch than all before, which no copy of the
checkpoint has too, and no number of a pass is ever given to different work.
"""

import fcntl
import json
import os
import socket
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import CheckpointInUse, SinkFenced, StateLost, UsageError
from lanemq.pipelines.batch import NUMBERS_PER_BATCH, Runs, batch_number, epoch_of_start, read_runs, run_name, start_of
from lanemq.pipelines.checkpoint.run_folder import take_over
from lanemq.pipelines.checkpoint.spark_log import SparkLog

OURS = "lanemq"
"""The folder beside Spark's own."""

LOCK_ATTEMPTS = 4
"""With 50 ms between them: `holder_of` looks at the lock by taking it for a moment."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a checkpoint is."""

    query: str
    """By this name sinks know its batches."""
    name: str
    source: Mapping[str, str]
    """Options of the source as of the last start, so that lag can be asked for without the declaration."""


class Checkpoint:
    """Held by one run from its start to its end."""

    def __init__(
        self, folder: Path, name: str, source: Mapping[str, str] | None = None, clock: Clock | None = None
    ) -> None:
        self.folder = folder
        self.name = name
        self.log = SparkLog(folder)
        self._ours = folder / OURS
        self._ours.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self._ours / "lock", folder, clock or SystemClock())
        try:
            self.query = self._identify(name, source or {})
            former = _runs(self._ours / "epoch")
            self.epoch = epoch_of_start(start_of(former.newest) + 1, int.from_bytes(os.urandom(4)))
            self.runs = former.with_next(self.epoch)
            _write(self._ours / "epoch", self.runs.text())
            take_over(self._ours, self.epoch)
        except BaseException:
            self.close()
            raise

    @property
    def stage_place(self) -> Path:
        """The stage's own folder."""
        return stage_place(self.folder)

    @property
    def decided_place(self) -> Path:
        """Where batches are decided."""
        return self._ours / "decided"

    @property
    def sink_positions_file(self) -> Path:
        """How far the sink has every queue."""
        return self._ours / "sink_positions.json"

    @property
    def queues_file(self) -> Path:
        """Which queues the state belongs to."""
        return self._ours / "queues.json"

    def refuse_if_replaced(self) -> None:
        """`SinkFenced` if another run was started meanwhile, on a file system whose locks did not hold."""
        newest = _runs(self._ours / "epoch").newest
        if newest != self.epoch:
            raise SinkFenced(
                f"run {run_name(self.epoch)} of checkpoint {self.folder} was replaced by run {run_name(newest)}: "
                f"nothing more is decided by the older one, stop it"
            )

    def next_retry_pass(self, behind: int) -> int | None:
        """A number for a pass behind a batch of Spark, never given before; None if there is no room for more."""
        last = _number(self._ours / "retry_pass")
        number = last + 1 if last // NUMBERS_PER_BATCH == behind else batch_number(behind, 1)
        if number // NUMBERS_PER_BATCH != behind:
            return None
        _write(self._ours / "retry_pass", str(number))
        return number

    def close(self) -> None:
        """Gives the checkpoint free; harmless when repeated."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _identify(self, name: str, source: Mapping[str, str]) -> str:
        known = own_identity(self.folder, name)
        query = known.query if known is not None else uuid.uuid4().hex
        _write(self._ours / "pipeline.json", json.dumps({"query": query, "name": name, "source": dict(source)}))
        return query


def stage_place(folder: Path) -> Path:
    """Where the stage of the pipeline with this checkpoint keeps its state."""
    return folder / OURS / "stage"


def identity_of(folder: Path) -> Identity | None:
    """Whose checkpoint a folder is; None if it is nobody's yet."""
    path = folder / OURS / "pipeline.json"
    try:
        found = json.loads(path.read_bytes())
        return Identity(str(found["query"]), str(found["name"]), dict(found.get("source", {})))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateLost(f"{path} cannot be read: {error!r}; restore the checkpoint from a copy") from error


def own_identity(folder: Path, name: str) -> Identity | None:
    """The same for the pipeline that is to use it; another's checkpoint is refused."""
    known = identity_of(folder)
    if known is None and SparkLog(folder).planned() is not None:
        raise UsageError(
            f"checkpoint {folder} belongs to a query that is no pipeline: choose an empty folder for {name!r}"
        )
    if known is not None and known.name != name:
        raise UsageError(
            f"checkpoint {folder} belongs to pipeline {known.name!r}: choose another folder for {name!r}, "
            f"or give it its old name"
        )
    return known


def epoch_of(folder: Path) -> int:
    """How often the pipeline was started."""
    return start_of(_runs(folder / OURS / "epoch").newest)


def holder_of(folder: Path) -> str | None:
    """Who runs the pipeline right now; None if nobody does."""
    try:
        fd = os.open(folder / OURS / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _who(fd)
    finally:
        os.close(fd)
    return None


def _locked(path: Path, folder: Path, clock: Clock) -> int:
    """The open lock file. The system drops the lock when the process ends, however it ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    if not _lock_within(fd, LOCK_ATTEMPTS):
        holder = _who(fd)
        os.close(fd)
        raise CheckpointInUse(
            f"checkpoint {folder} is used by another run ({holder}): stop that one, or choose another checkpoint"
        )
    since = datetime.fromtimestamp(clock.wall() // 1000, UTC).isoformat()
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode(), 0)
    return fd


def _lock_within(fd: int, attempts: int) -> bool:
    for _ in range(attempts):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            threading.Event().wait(0.05)
        else:
            return True
    return False


def _who(fd: int) -> str:
    return os.pread(fd, 500, 0).decode("utf-8", "replace").strip() or "unknown"


def _number(path: Path) -> int:
    try:
        return int(path.read_text("ascii"))
    except FileNotFoundError:
        return 0
    except ValueError as error:
        raise StateLost(f"{path} holds no number: restore the checkpoint from a copy") from error


def _runs(path: Path) -> Runs:
    try:
        return read_runs(path.read_text("ascii"))
    except FileNotFoundError:
        return Runs(())
    except ValueError as error:
        raise StateLost(f"{path} holds no number: restore the checkpoint from a copy") from error


def _write(path: Path, text: str) -> None:
    """Either the old text or the new one is there after a crash, and after a return it is the new one."""
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
