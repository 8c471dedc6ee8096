"""A run that was replaced changes no fenced file, on every kind of store, wherever it was interrupted."""

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from lanemq.files import StorePath, write_durably
from lanemq.files.objects import ObjectPath
from lanemq.model.errors import SinkFenced, StateLost
from lanemq.pipelines.batches import Batch, batch_number
from lanemq.pipelines.checkpoint import fencing
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint, epoch_of, holder_of, identity_of
from lanemq.pipelines.checkpoint.decisions import Decisions
from lanemq.pipelines.checkpoint.fencing import read_fenced, remove_fenced
from lanemq.pipelines.ports import Results, TableRows


class Died(Exception):
    """The process ended here."""


def start(root: StorePath, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """A run. Locks of a local disk do not hold, as on some shared disks."""
    monkeypatch.setattr("lanemq.pipelines.checkpoint.checkpoint._try_lock", lambda fd: True)
    return Checkpoint(root, "orders")


def test_only_the_newest_run_writes(root: StorePath, monkeypatch: pytest.MonkeyPatch) -> None:
    older = start(root, monkeypatch)
    path = older.stage_folder / "manifests" / "1.json"
    older.write(path, b"older")
    newer = start(root, monkeypatch)
    assert read_fenced(path) == b"older"
    with pytest.raises(SinkFenced, match=r"run 1 of the pipeline with state in .* was replaced"):
        older.write(path, b"too late")
    with pytest.raises(SinkFenced, match=r"run 1 of checkpoint .* was replaced by run 2"):
        older.refuse_if_replaced()
    newer.write(path, b"newer")
    newer.write(path, b"newest")
    newer.refuse_if_replaced()
    assert read_fenced(path) == b"newest"
    assert [each.name for each in path.parent.glob("*.json")] == ["1.json"]
    remove_fenced(path)
    assert not path.exists()
    for each in (older, newer):
        each.close()


def test_many_starts_at_once_leave_one_run_that_may_write(root: StorePath, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(root, Path):
        pytest.skip("a lock refuses all but one")

    def attempt(number: int) -> Checkpoint | None:
        try:
            return Checkpoint(root, "orders")
        except SinkFenced:
            return None

    with ThreadPoolExecutor(6) as pool:
        runs = [run for run in pool.map(attempt, range(6)) if run is not None]
    newest = max(runs, key=lambda run: run.epoch)
    assert epoch_of(root) == 6
    assert len({run.query for run in runs}) == 1, "they agree on the identity"
    assert (identity_of(root) is not None, holder_of(root)) == (True, None)
    for run in runs:
        if run is not newest:
            with pytest.raises(SinkFenced):
                run.write(run.queues_file, b"older")
    newest.write(newest.queues_file, b"newest")
    assert read_fenced(newest.queues_file) == b"newest"


def test_numbers_of_retry_passes_and_runs_go_on(root: StorePath, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(root, monkeypatch)
    assert first.next_retry_pass(3) == batch_number(3, 1)
    first.close()
    second = start(root, monkeypatch)
    assert second.next_retry_pass(3) == batch_number(3, 2)
    assert second.runs.epochs == (first.epoch, second.epoch)
    second.close()


# Object stores.


@pytest.fixture
def objects() -> ObjectPath:
    return ObjectPath("memory://", uuid.uuid4().hex)


class Interrupted:
    """Counts the changes that a process makes to the store, and ends the process before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 1_000_000
        for name in ("put", "create", "unlink", "remove_tree"):
            monkeypatch.setattr(ObjectPath, name, self._around(getattr(ObjectPath, name)))

    def _around(self, real: Callable[..., object]) -> Callable[..., object]:
        def change(*args: object, **options: object) -> object:
            if self.left == 0:
                raise Died
            self.left -= 1
            return real(*args, **options)

        return change


@pytest.mark.parametrize("changes", range(6))
def test_a_write_that_dies_at_any_change_counts_completely_or_not_at_all(
    objects: ObjectPath, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    store = Interrupted(monkeypatch)
    older = Checkpoint(objects, "orders")
    path = older.stage_folder / "ends.json"
    older.write(path, b"one")
    store.left = changes
    died = False
    try:
        older.write(path, b"two")
    except Died:
        died = True
    assert died == (changes < 4), "an entry, a version, and one deletion of each"
    store.left = 1_000_000
    newer = Checkpoint(objects, "orders")
    assert read_fenced(path) == (b"one" if changes == 0 else b"two"), "it counts from its entry in the journal"
    newer.write(path, b"three")
    assert read_fenced(path) == b"three"


def test_a_version_that_arrives_late_hides_no_newer_one(objects: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    older = Checkpoint(objects, "orders")
    path = older.stage_folder / "ends.json"
    late: list[tuple[StorePath, bytes]] = []
    with monkeypatch.context() as patched:
        patched.setattr(fencing, "write_durably", lambda *given: late.append(given))
        older.write(path, b"older")
    newer = Checkpoint(objects, "orders")
    assert read_fenced(path) == b"older", "the newer run has written it"
    newer.write(path, b"newer")
    for version, content in late:
        write_durably(version, content)
    assert read_fenced(path) == b"newer"
    newer.write(path, b"newest")
    assert read_fenced(path) == b"newest"


def test_a_journal_is_closed_behind_entries_that_come_while_it_is_closed(
    objects: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older run appends two entries, and removes the first, between the newer run's look and its own entry."""
    older = Checkpoint(objects, "orders")
    path, real, came = older.stage_folder / "ends.json", fencing.create, []

    def create(entry: StorePath, content: bytes) -> bool:
        if not came and str(older.epoch) in str(entry):
            came.append(entry)
            with monkeypatch.context() as patched:
                patched.setattr(fencing, "create", real)
                older.write(path, b"one")
                older.write(path, b"two")
        return real(entry, content)

    monkeypatch.setattr(fencing, "create", create)
    newer = Checkpoint(objects, "orders")
    assert came
    assert read_fenced(path) == b"two", "both were there before the journal was closed"
    with pytest.raises(SinkFenced):
        older.write(path, b"three")
    newer.write(path, b"newer")
    assert read_fenced(path) == b"newer"


def test_without_the_closing_entry_a_replaced_run_would_write(
    objects: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    older = Checkpoint(objects, "orders")
    monkeypatch.setattr(fencing, "_close", lambda *given: None)
    Checkpoint(objects, "orders")
    older.write(older.queues_file, b"too late")
    assert read_fenced(older.queues_file) == b"too late"


def test_a_lost_answer_to_an_entry_is_no_refusal(objects: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client repeats the request, and the store answers that the object exists."""
    run = Checkpoint(objects, "orders")
    real = ObjectPath.create

    def twice(path: ObjectPath, content: bytes) -> bool:
        return real(path, content) and real(path, content)

    monkeypatch.setattr(ObjectPath, "create", twice)
    run.write(run.queues_file, b"queues")
    assert read_fenced(run.queues_file) == b"queues"


def test_starts_do_not_read_journals_that_are_closed(objects: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(8):
        Checkpoint(objects, "orders")
    looked: list[int] = []
    monkeypatch.setattr(fencing, "_close", lambda own_folder, older, epoch: looked.append(older))
    last = Checkpoint(objects, "orders")
    assert looked == [last.runs.epochs[-2]]
    assert len(list((objects / "lanemq" / "epochs").iterdir())) == 5


# Decisions and plans.

COLUMNS = StructType([StructField("n", LongType())])


def results(*numbers: int) -> Results:
    return Results(TableRows(COLUMNS, pa.table({"n": pa.array(numbers, pa.int64())})), state="{}")


def test_the_first_decision_of_a_batch_counts_until_it_is_forgotten(
    root: StorePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = start(root, monkeypatch)
    batch = Batch(older.query, batch_number(0), older.epoch)
    decided = Decisions(older.decisions_folder, write=older.write)
    decided.open()
    assert decided.find(batch, COLUMNS, {}) is None
    assert decided.make(batch, results(1, 2), {}).outputs.table()["n"].to_pylist() == [1, 2]
    newer = start(root, monkeypatch)
    after = Decisions(newer.decisions_folder, write=newer.write)
    after.open()
    assert after.numbers() == [batch.number]
    found = after.find(batch, COLUMNS, {})
    assert found is not None
    assert found.outputs.table()["n"].to_pylist() == [1, 2], "its files are kept"
    after.forget(batch.number)
    assert (after.numbers(), list(newer.decisions_folder.iterdir())) == ([], [])
    for each in (older, newer):
        each.close()


def test_a_replaced_run_decides_nothing_on_an_object_store(objects: ObjectPath) -> None:
    older = Checkpoint(objects, "orders")
    decided = Decisions(older.decisions_folder, write=older.write)
    Checkpoint(objects, "orders")
    with pytest.raises(SinkFenced):
        decided.make(Batch(older.query, batch_number(0), older.epoch), results(1), {})
    assert list(older.decisions_folder.iterdir()) == []


def plan(root: StorePath, batch: int, end: int) -> None:
    write_durably(root / "offsets" / str(batch), f'v1\n{{}}\n{{"orders": {{"b/0": {end}}}}}'.encode())


def test_a_plan_that_a_replaced_run_overwrites_is_noticed(root: StorePath, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(root, Path):
        pytest.skip("a lock keeps the replaced run away")
    run = start(root, monkeypatch)
    for batch in range(6):
        plan(root, batch, end=10 * batch)
        run.log.sync(batch)
        run.log.sync(batch)
    run.log.check_plans()
    assert len(list((root / "lanemq" / "plans").iterdir())) == 3
    plan(root, 5, end=55)
    with pytest.raises(StateLost, match=r"offsets/5 is not the plan under which batch 5 was committed"):
        run.log.check_plans()
    with pytest.raises(StateLost, match=r"copy .*plans/5 over it"):
        run.log.sync(5)
    monkeypatch.setattr("lanemq.pipelines.checkpoint.checkpoint.create", lambda path, content: True)
    run.log.sync(5)  # the control: without a plan that must not be there, nothing is noticed
