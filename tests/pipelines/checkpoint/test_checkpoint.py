"""A checkpoint has one run at a time, a fixed identity, and numbers that never repeat."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lanemq.files import write_durably
from lanemq.model.errors import CheckpointInUse, InvalidOption, StateLost, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.pipelines.batches import (
    MAX_RUNS,
    Runs,
    epoch_of_start,
    start_of,
)
from lanemq.pipelines.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointLock,
    SparkLog,
    epoch_of,
    holder_of,
    identity_of,
    need_identity,
)

HOLD = """
import sys
from pathlib import Path
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
held = Checkpoint(Path(sys.argv[1]), "orders")
print("held", flush=True)
sys.stdin.read()
"""


def used_by_spark(folder: Path, planned: int, done: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text('{"id": "1"}')
    for name, last in (("offsets", planned), ("commits", done)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for batch in range(last + 1):
            end = json.dumps({"orders": {"b/0": batch + 1}})
            (folder / name / str(batch)).write_text(f"v1\n{{}}\n{end}")


def test_a_second_run_in_this_process_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    first = Checkpoint(tmp_path, "orders")
    with pytest.raises(CheckpointInUse, match=rf"used by another run \(process {os.getpid()} on "):
        Checkpoint(tmp_path, "orders")
    first.close()
    first.close()
    Checkpoint(tmp_path, "orders").close()


@pytest.mark.parametrize("below", ["", "orders"])
@pytest.mark.parametrize("use", [lambda folder: Checkpoint(folder, "orders"), CheckpointLock, holder_of])
def test_a_file_is_no_checkpoint(tmp_path: Path, use: Callable[[Path], object], below: str) -> None:
    """Also for a program that starts a pipeline without the command line."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOption, match="is a file, or below one: choose a folder"):
        use(tmp_path / "file" / below)


def test_a_run_in_another_process_is_named_and_its_kill_frees_the_checkpoint(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(CheckpointInUse, match=f"process {other.pid} on .* since 20"):
            Checkpoint(tmp_path, "orders")
        assert f"process {other.pid} " in (holder_of(tmp_path) or "")
        other.send_signal(signal.SIGKILL)
        other.wait(30)
    assert holder_of(tmp_path) is None
    after = Checkpoint(tmp_path, "orders")
    assert start_of(after.epoch) == 2
    after.close()


def test_reading_the_holder_does_not_keep_the_lock(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        (tmp_path / "lanemq" / "lock").stat()
    assert holder_of(tmp_path) is None
    held = Checkpoint(tmp_path, "orders")
    assert holder_of(tmp_path) is not None
    with pytest.raises(CheckpointInUse):
        Checkpoint(tmp_path, "orders")
    held.close()


def test_a_restart_keeps_the_identity_and_raises_the_epoch(tmp_path: Path) -> None:
    queries = set()
    for epoch in (1, 2, 3):
        run = Checkpoint(tmp_path, "orders", {"servers": "a:1", "topic": "orders"})
        queries.add(run.query)
        assert start_of(run.epoch) == epoch == epoch_of(tmp_path)
        run.close()
    assert len(queries) == 1
    known = identity_of(tmp_path)
    assert known is not None
    assert (known.query, known.name, known.source["topic"]) == (*queries, "orders", "orders")


def test_a_refused_start_uses_no_epoch(tmp_path: Path) -> None:
    Checkpoint(tmp_path, "orders").close()
    with pytest.raises(UsageError, match=r"belongs to pipeline 'orders': choose another folder for 'bills'"):
        Checkpoint(tmp_path, "bills")
    run = Checkpoint(tmp_path, "orders")
    assert start_of(run.epoch) == 2
    run.close()


def test_a_checkpoint_of_a_plain_spark_query_is_refused(tmp_path: Path) -> None:
    """Its batches have numbers, but there is no state and no ledger that would fit them."""
    used_by_spark(tmp_path, planned=3, done=3)
    with pytest.raises(UsageError, match="belongs to a Spark query that is not a pipeline"):
        Checkpoint(tmp_path, "orders")
    assert holder_of(tmp_path) is None


@pytest.mark.parametrize(
    ("deleted", "missing", "proof"),
    [
        ("lanemq/pipeline.json", "lanemq/pipeline.json", "lanemq/log is there"),
        ("lanemq/log", "lanemq/log", "batch 2 was planned"),
        ("offsets", "offsets/1", "batch 1 is done"),
        ("offsets/[12]", "offsets/1", "batch 1 is done"),
        ("offsets/1", "offsets/1", "batch 2, which begins where it ends, was planned"),
        ("metadata", "metadata", "batch 2 was planned"),
    ],
)
def test_a_partly_deleted_checkpoint_is_refused_and_says_which_file_is_missing(
    tmp_path: Path, deleted: str, missing: str, proof: str
) -> None:
    Checkpoint(tmp_path, "orders").close()
    used_by_spark(tmp_path, planned=2, done=1)
    for path in tmp_path.glob(deleted):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for _ in range(2):
        with pytest.raises(StateLost, match=rf"part of checkpoint .* deleted: {missing} is missing, although {proof}"):
            Checkpoint(tmp_path, "orders")


@pytest.mark.parametrize("runs", ["epoch", "epochs/000000000001"])
def test_a_checkpoint_of_an_earlier_version_is_refused_as_one(tmp_path: Path, runs: str) -> None:
    """Nothing of it was deleted, so a copy would not help."""
    Checkpoint(tmp_path, "orders").close()
    used_by_spark(tmp_path, planned=2, done=1)
    shutil.rmtree(tmp_path / "lanemq" / "log")
    write_durably(tmp_path / "lanemq" / runs, b"1 7")
    for look in (lambda: Checkpoint(tmp_path, "orders"), lambda: need_identity(tmp_path)):
        with pytest.raises(UsageError, match=r"written by an earlier version of LaneMQ.*continue with that version"):
            look()


def test_a_checkpoint_without_its_own_folder_may_be_another_query_s_or_partly_deleted(tmp_path: Path) -> None:
    Checkpoint(tmp_path, "orders").close()
    used_by_spark(tmp_path, planned=2, done=1)
    shutil.rmtree(tmp_path / "lanemq")
    with pytest.raises(UsageError, match="not a pipeline, or its folder lanemq was deleted"):
        Checkpoint(tmp_path, "orders")


@pytest.mark.parametrize(
    ("name", "text"), [("log/000000000000", "x"), ("pipeline.json", '{"name": "orders"'), ("pipeline.json", "[]")]
)
def test_a_damaged_file_is_an_error(tmp_path: Path, name: str, text: str) -> None:
    Checkpoint(tmp_path, "orders").close()
    (tmp_path / "lanemq" / name).write_text(text)
    with pytest.raises(StateLost, match=name.replace(".", r"\.")):
        Checkpoint(tmp_path, "orders")
    assert holder_of(tmp_path) is None


def test_sparks_log_has_the_planned_and_the_done_batches(tmp_path: Path) -> None:
    log = SparkLog(tmp_path)
    assert (log.planned(), log.done(), log.is_done(0)) == (None, None, False)
    used_by_spark(tmp_path, planned=12, done=11)
    (tmp_path / "commits" / ".12.tmp").touch()
    assert (log.planned(), log.done()) == (12, 11)
    assert log.is_done(11)
    assert not log.is_done(12)
    assert log.end_of(12) == {MessageQueue("orders", "b", 0): 13}
    (tmp_path / "offsets" / "12").write_text("v1\n")
    with pytest.raises(StateLost, match=r"offsets.12 cannot be read"):
        log.end_of(12)


def test_a_half_written_file_is_ignored(tmp_path: Path) -> None:
    """A crash leaves a half-written file beside the real one."""
    Checkpoint(tmp_path, "orders").close()
    (tmp_path / "lanemq" / "log" / ".000000000007.new").write_text("99")
    (tmp_path / "lanemq" / ".pipeline.json.new").write_text("{")
    run = Checkpoint(tmp_path, "orders")
    assert start_of(run.epoch) == 2
    run.close()
    assert json.loads((tmp_path / "lanemq" / "pipeline.json").read_text())["name"] == "orders"


def test_each_copy_of_a_checkpoint_recognises_only_its_own_epochs(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "one", "orders").close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one, two = Checkpoint(tmp_path / "one", "orders"), Checkpoint(tmp_path / "two", "orders")
    assert (start_of(one.epoch), start_of(two.epoch)) == (2, 2)
    assert one.runs.epochs[0] == two.runs.epochs[0]
    assert (one.runs.includes(one.epoch), one.runs.includes(two.epoch), two.runs.includes(one.epoch)) == (
        True,
        False,
        False,
    )
    one.close()
    two.close()


def test_epochs_older_than_the_remembered_ones_are_accepted() -> None:
    runs = Runs(())
    for start in range(1, MAX_RUNS + 11):
        runs = runs.with_next(epoch_of_start(start, start))
    assert len(runs.epochs) == MAX_RUNS
    assert runs.includes(epoch_of_start(5, 99))
    assert runs.includes(7)
    assert not runs.includes(epoch_of_start(MAX_RUNS, 99))
