"""A pipeline's checkpoint: which run may use it, its identity, its epochs, and Spark's part of it.

    <checkpoint>/offsets, commits         Spark's: the batches that were planned, and those that are done
    <checkpoint>/dead_letters             dead letters, unless the pipeline declares a sink for them
    <checkpoint>/lanemq/                  the pipeline's own part
        pipeline.json                     the identity
        lock                              on a local disk: the running process
        log/<n>                           the runs, and what they have recorded: declaration, queues, the last unit of
                                          work with the stage's state; see run_log.py and units.py
        plans/<batch>                     on other stores: copies of Spark's plans
        stage/, decided/                  files of the stage, and rows of a decided unit of work

On a local disk a lock refuses a second run, and the death of the process frees it. HDFS and object stores have no such
lock: there the run that starts last replaces the others, which can change nothing from then on.

Invariants: one run at a time may change a checkpoint, and no lock outlives its process; a checkpoint belongs to one
pipeline; every start has a higher epoch than all before, which no copy of the checkpoint shares; a run that was
replaced changes no state.
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
from typing import Final

from lanemq.clock import Clock, SystemClock
from lanemq.files import RemotePath, StorePath, create, sync, write_durably
from lanemq.model.errors import CheckpointInUse, InvalidOption, StateLost, UsageError
from lanemq.pipelines.batches import Runs, epoch_of_start, start_of
from lanemq.pipelines.checkpoint.run_log import RunLog, read_log
from lanemq.spark.offsets import OffsetJson, Positions, from_json

OWN_FOLDER: Final = "lanemq"
"""The pipeline's own folder, beside Spark's."""
MAX_LOCK_ATTEMPTS: Final = 4
"""With 50 ms between them, because `holder_of` takes the lock for a moment to look at it."""
KEPT_PLANS: Final = 3
_DECLARATION: Final = "declaration"


class Checkpoint:
    """A checkpoint that is held by one run, from its start to its end."""

    def __init__(
        self,
        folder: StorePath,
        name: str,
        source: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        lock: "CheckpointLock | None" = None,
    ) -> None:
        """`lock`: of this folder, if the caller holds it already. The checkpoint releases it when it is closed."""
        self.folder = folder
        self.name = name
        self.log = SparkLog(folder)
        self._own = folder / OWN_FOLDER
        _make_folder(self._own, folder)
        self._lock = lock or CheckpointLock(folder, clock)
        try:
            self.query = self._identify(name, source or {})
            self.run_log = RunLog(run_log_folder(folder), _next_epoch)
        except BaseException:
            self.close()
            raise

    @property
    def stage_folder(self) -> StorePath:
        return stage_folder(self.folder)

    @property
    def dead_letters_folder(self) -> StorePath:
        return dead_letters_folder(self.folder)

    @property
    def decided_folder(self) -> StorePath:
        """The rows of decided units of work."""
        return self._own / "decided"

    @property
    def runs(self) -> Runs:
        """The runs so far, this one last."""
        return self.run_log.runs

    @property
    def epoch(self) -> int:
        return self.run_log.epoch

    def record_declaration(self, fingerprint: str) -> None:
        """Record what was declared, after stage and sink have accepted it."""
        self.run_log.record(_DECLARATION, fingerprint.encode())

    def close(self) -> None:
        """Release the checkpoint. May be called again."""
        self._lock.release()

    def _identify(self, name: str, source: Mapping[str, str]) -> str:
        path, known = self._own / "pipeline.json", own_identity(self.folder, name)
        if known is None:
            create(path, _identity_json(uuid.uuid4().hex, name, source))  # unless another run has, at this moment
            known = own_identity(self.folder, name)
        assert known is not None, "it was there, or was created"
        write_durably(path, _identity_json(known.query, name, source))
        return known.query


def _identity_json(query: str, name: str, source: Mapping[str, str]) -> bytes:
    return json.dumps({"query": query, "name": name, "source": dict(source)}).encode()


def stage_folder(checkpoint: StorePath) -> StorePath:
    """Where the stage keeps its state."""
    return checkpoint / OWN_FOLDER / "stage"


def run_log_folder(checkpoint: StorePath) -> StorePath:
    """Where runs record what only the newest of them may change."""
    return checkpoint / OWN_FOLDER / "log"


def run_log_of_stage(stage: StorePath) -> StorePath:
    """The log of the checkpoint that a stage's folder is part of."""
    return stage.parent / "log"


def dead_letters_folder(checkpoint: StorePath) -> StorePath:
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


def identity_of(folder: StorePath) -> CheckpointIdentity | None:
    """The pipeline that a checkpoint belongs to; None before its first start."""
    path = folder / OWN_FOLDER / "pipeline.json"
    try:
        found = json.loads(path.read_bytes())
        return CheckpointIdentity(str(found["query"]), str(found["name"]), dict(found.get("source", {})))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateLost(f"{path} cannot be read: {error!r}; restore the checkpoint from a copy") from error


def declaration_of(folder: StorePath) -> str | None:
    """The fingerprint of the declaration that the last start accepted; None before the first."""
    recorded = read_log(run_log_folder(folder)).records.get(_DECLARATION)
    return None if recorded is None else recorded.decode("ascii")


def need_identity(folder: StorePath) -> CheckpointIdentity:
    """Like `identity_of`, but `UsageError` if there was no start, or none by a version that this one understands."""
    known = identity_of(folder)
    if known is None:
        raise UsageError(
            f"{folder} is not a checkpoint of a pipeline: it was never started, or its checkpoint is another folder"
        )
    if not read_log(run_log_folder(folder)).runs.epochs:
        _refuse_earlier_layout(folder)
    return known


def own_identity(folder: StorePath, name: str) -> CheckpointIdentity | None:
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


def _refuse_parts(folder: StorePath, identified: bool) -> None:
    """`StateLost` if files of a checkpoint are missing that its other files prove to have existed."""
    spark = SparkLog(folder)
    planned, done = spark.planned(), spark.done()
    # Another run may create both in between, the identity first, so the identity is looked for again.
    if not identified and read_log(run_log_folder(folder)).runs.epochs and identity_of(folder) is None:
        missing, proof = f"{OWN_FOLDER}/pipeline.json", f"{OWN_FOLDER}/log is there"
    elif identified and planned is not None and not read_log(run_log_folder(folder)).runs.epochs:
        _refuse_earlier_layout(folder)
        missing, proof = f"{OWN_FOLDER}/log", f"batch {planned} was planned"
    elif identified and done is not None and (planned is None or planned < done):
        missing, proof = f"offsets/{done}", f"batch {done} is done"
    elif identified and planned and not spark.is_planned(planned - 1):
        missing, proof = f"offsets/{planned - 1}", f"batch {planned}, which begins where it ends, was planned"
    elif identified and planned is not None and not (folder / "metadata").exists():
        missing, proof = "metadata", f"batch {planned} was planned"
    else:
        return
    raise StateLost(
        f"part of checkpoint {folder} was deleted: {missing} is missing, although {proof}. Restore the whole folder "
        f"from one copy, or begin with an empty checkpoint and an empty sink"
    )


def _refuse_earlier_layout(folder: StorePath) -> None:
    """`UsageError` if the checkpoint has its runs where LaneMQ kept them before there was a log."""
    if any((folder / OWN_FOLDER / name).exists() for name in ("epoch", "epochs")):
        raise UsageError(
            f"checkpoint {folder} was written by an earlier version of LaneMQ, whose files this one cannot read: "
            f"continue with that version, or begin with an empty checkpoint and an empty sink"
        )


def epoch_of(folder: StorePath) -> int:
    """How often the pipeline was started."""
    return start_of(read_log(run_log_folder(folder)).runs.newest)


def _next_epoch(runs: Runs) -> int:
    """The epoch of a new run, which is higher than all before."""
    return epoch_of_start(start_of(runs.newest) + 1, int.from_bytes(os.urandom(4)))


def holder_of(folder: StorePath) -> str | None:
    """The process that runs the pipeline now; None if there is none, or if the store has no locks."""
    if not isinstance(folder, Path):
        return None
    try:
        fd = os.open(folder / OWN_FOLDER / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise _not_a_folder(folder) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read_holder(fd)
    finally:
        os.close(fd)
    return None


def _make_folder(own: StorePath, checkpoint: StorePath) -> None:
    try:
        own.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise _not_a_folder(checkpoint) from error


def _not_a_folder(checkpoint: StorePath) -> InvalidOption:
    return InvalidOption(
        f"checkpoint {checkpoint} is a file, or below one: choose a folder, which is created if it does not exist"
    )


def in_use(folder: StorePath, holder: str) -> CheckpointInUse:
    return CheckpointInUse(
        f"checkpoint {folder} is used by another run ({holder}): stop that one, or choose another checkpoint"
    )


class CheckpointLock:
    """The lock of a checkpoint on a local disk; on other stores it locks nothing.

    `lanemq pipeline run` takes it before it starts Spark, so of two runs that start at the same time the second one is
    refused at once. A run on a remote store replaces the others, and therefore does so only when its Spark is up.
    """

    def __init__(self, folder: StorePath, clock: Clock | None = None) -> None:
        """`CheckpointInUse` if another run holds it."""
        self._fd = -1
        if isinstance(folder, Path):
            _make_folder(folder / OWN_FOLDER, folder)
            self._fd = _locked(folder / OWN_FOLDER / "lock", folder, clock or SystemClock())

    def release(self) -> None:
        """Release the lock. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


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


class SparkLog:
    """Spark's part of a checkpoint: which batches were planned, which are done, and where they end.

    Reads the files themselves: after a crash only they are right, and for Spark a batch is done when its file is
    there, not when our code has returned.
    """

    def __init__(self, checkpoint: StorePath) -> None:
        self._plans = checkpoint / OWN_FOLDER / "plans"
        self._offsets = checkpoint / "offsets"
        self._commits = checkpoint / "commits"

    def planned(self) -> int | None:
        """The last batch whose end is fixed; None before the first."""
        return _last(self._offsets)

    def done(self) -> int | None:
        """The last batch that Spark will not repeat; None before the first."""
        return _last(self._commits)

    def is_planned(self, batch: int) -> bool:
        return (self._offsets / str(batch)).exists()

    def is_done(self, batch: int) -> bool:
        return (self._commits / str(batch)).exists()

    def sync(self, batch: int) -> None:
        """Make sure that the plan of a batch stays, before the batch is committed.

        Spark does not sync it: after a power cut it would plan other messages under the number of a batch that the
        sink has. On a remote store a run that was replaced may plan the same batch; the first of the two plans that
        is copied here counts.
        """
        path = self._offsets / str(batch)
        if isinstance(path, RemotePath):
            if not create(self._plans / str(batch), path.read_bytes()):
                raise self._other_plan(batch)
            (self._plans / str(batch - KEPT_PLANS)).unlink(missing_ok=True)
            return
        for each in (path, self._offsets):
            sync(each)

    def check_plans(self) -> None:
        """`StateLost` if Spark's plan of a batch is not the one under which the batch was committed."""
        for plan in self._plans.glob("[0-9]*"):
            path = self._offsets / plan.name
            if path.exists() and path.read_bytes() != plan.read_bytes():
                raise self._other_plan(int(plan.name))

    def _other_plan(self, batch: int) -> StateLost:
        return StateLost(
            f"{self._offsets / str(batch)} is not the plan under which batch {batch} was committed: a run that was "
            f"replaced has written it. Stop that run, copy {self._plans / str(batch)} over it, and start again"
        )

    def end_of(self, batch: int) -> Positions:
        """Where a planned batch ends, in every queue."""
        return from_json(self.plan_of(batch))

    def plan_of(self, batch: int) -> OffsetJson:
        """The end of a planned batch as the source wrote it, which also says when the topics were created."""
        path = self._offsets / str(batch)
        try:
            lines = path.read_bytes().decode("utf-8").splitlines()
            found: OffsetJson = json.loads(lines[2]) if lines[2] != "-" else {}
        except (OSError, IndexError, ValueError) as error:
            raise StateLost(f"{path} cannot be read: {error}; restore the checkpoint from a copy") from error
        return found


def _last(folder: StorePath) -> int | None:
    try:
        return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=None)
    except FileNotFoundError:
        return None
