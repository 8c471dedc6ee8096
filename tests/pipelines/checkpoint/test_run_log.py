"""A run that was replaced records nothing, on every kind of store, wherever it was interrupted."""

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lanemq.files import StorePath, write_durably
from lanemq.files.objects import ObjectPath
from lanemq.model.errors import SinkFenced, StateLost
from lanemq.pipelines.batches import MAX_RUNS, Runs, start_of
from lanemq.pipelines.checkpoint import run_log
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint, epoch_of, holder_of, identity_of, run_log_folder
from lanemq.pipelines.checkpoint.run_log import RunLog, read_log, shut_runs_out


class Died(Exception):
    """The process ended here."""


def start(root: StorePath, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """A run. Locks of a local disk do not hold, as on some shared disks."""
    monkeypatch.setattr("lanemq.pipelines.checkpoint.checkpoint._try_lock", lambda fd: True)
    return Checkpoint(root, "orders")


def begin(folder: StorePath) -> RunLog:
    return RunLog(folder, next_epoch)


def next_epoch(runs: Runs) -> int:
    return (start_of(runs.newest) + 1) << 32


def test_only_the_newest_run_records(root: StorePath) -> None:
    older = begin(root)
    older.record("a", b"older")
    newer = begin(root)
    assert (newer.records, newer.runs.epochs) == ({"a": b"older"}, (older.epoch, newer.epoch))
    with pytest.raises(SinkFenced, match=r"run 1 of the pipeline .* was replaced by run 2"):
        older.record("a", b"too late")
    with pytest.raises(SinkFenced, match=r"run 1 of the pipeline .* was replaced by run 2"):
        older.refuse_if_replaced()
    newer.record("a", b"newer")
    newer.record("b", b"newest")
    newer.refuse_if_replaced()
    with pytest.raises(SinkFenced):
        older.record("a", b"still too late")
    assert read_log(root).records == {"a": b"newer", "b": b"newest"}


def test_a_log_keeps_one_entry_and_the_places_where_runs_began(root: StorePath) -> None:
    for _ in range(3):
        log = begin(root)
        for at in range(5):
            log.record("a", b"%d" % at)
    sizes = [len((root / path.name).read_bytes()) for path in root.iterdir()]
    assert (len(sizes), sum(size > 0 for size in sizes)) == (4, 1)


def test_runs_that_are_shut_out_record_nothing_and_a_later_one_may(root: StorePath) -> None:
    shut_runs_out(root)
    assert read_log(root).runs.epochs == ()
    older = begin(root)
    shut_runs_out(root)
    with pytest.raises(SinkFenced, match=r"run 1 of the pipeline .* was replaced: "):
        older.record("a", b"too late")
    assert begin(root).runs.epochs == (older.epoch, 2 << 32)


def test_a_start_that_was_refused_replaces_no_run(root: StorePath) -> None:
    def refuse(runs: Runs) -> int:
        raise StateLost("no")

    log = begin(root)
    with pytest.raises(StateLost):
        RunLog(root, refuse)
    log.record("a", b"still")


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
                run.run_log.record("queues", b"older")
    newest.run_log.record("queues", b"newest")
    assert read_log(run_log_folder(root)).records == {"queues": b"newest"}


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


@pytest.mark.parametrize("changes", range(4))
def test_a_record_that_dies_at_any_change_counts_completely_or_not_at_all(
    objects: ObjectPath, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    store = Interrupted(monkeypatch)
    older = begin(objects)
    older.record("a", b"one")
    store.left = changes
    died = False
    try:
        older.record("a", b"two")
    except Died:
        died = True
    assert died == (changes < 2), "an entry, and the deletion of the one before"
    store.left = 1_000_000
    newer = begin(objects)
    assert newer.records["a"] == (b"one" if changes == 0 else b"two")
    newer.record("a", b"three")
    assert read_log(objects).records["a"] == b"three"
    assert len(list(objects.iterdir())) == 3, "what was left is removed"


@pytest.mark.parametrize("records", [1, 2, 3])
def test_a_start_that_hangs_while_others_run_begins_behind_them(
    objects: ObjectPath, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    """It looked at the log before; the number that it wanted was given to an entry that is removed by now."""
    older, real, came = begin(objects), run_log.create, []

    def create(path: StorePath, content: bytes) -> bool:
        if not came:
            came.append(path)
            for at in range(records):
                older.record("a", b"%d" % at)
        return real(path, content)

    monkeypatch.setattr(run_log, "create", create)
    newer = begin(objects)
    assert newer.records["a"] == b"%d" % (records - 1)
    with pytest.raises(SinkFenced):
        older.record("a", b"too late")
    newer.record("a", b"newer")
    assert read_log(objects).records["a"] == b"newer"


def test_a_run_that_is_replaced_while_it_starts_leaves_its_entry_in_the_way_of_the_run_before(
    objects: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, real, between = begin(objects), run_log.create, []

    def create(path: StorePath, content: bytes) -> bool:
        created = real(path, content)
        if not between:
            between.append(path)
            begin(objects).record("a", b"newest")
        return created

    monkeypatch.setattr(run_log, "create", create)
    middle = begin(objects)
    for replaced in (older, middle):
        with pytest.raises(SinkFenced):
            replaced.record("a", b"too late")
    assert read_log(objects).records["a"] == b"newest"


def test_without_exclusive_creation_a_replaced_run_would_record(
    objects: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    older = begin(objects)
    begin(objects)
    monkeypatch.setattr(run_log, "create", lambda path, content: write_durably(path, content) is None)
    older.record("a", b"too late")
    assert read_log(objects).records["a"] == b"too late"


def test_if_the_entry_of_a_start_were_removed_the_run_before_would_record(objects: ObjectPath) -> None:
    """The control of the empty entries."""
    older = begin(objects)
    newer = begin(objects)
    newer.record("a", b"newer")
    (objects / f"{1:012}").unlink()
    older.record("a", b"too late")


def test_a_lost_answer_to_an_entry_is_no_refusal(objects: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client repeats the request, and the store answers that the object exists."""
    log, real = begin(objects), ObjectPath.create

    def twice(path: ObjectPath, content: bytes) -> bool:
        return real(path, content) and real(path, content)

    monkeypatch.setattr(ObjectPath, "create", twice)
    log.record("a", b"one")
    assert read_log(objects).records["a"] == b"one"


def test_a_damaged_or_deleted_entry_is_an_error(root: StorePath) -> None:
    log = begin(root)
    begin(root).record("a", b"one")
    write_durably(root / f"{2:012}", b"x")
    with pytest.raises(StateLost, match="000002 is damaged"):
        read_log(root)
    (root / f"{2:012}").unlink()
    with pytest.raises(StateLost, match=r"the entry after .*000001 was deleted"):
        begin(root)
    assert log.epoch


def test_a_folder_in_the_place_of_an_entry_is_an_error(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / f"{5:012}").mkdir()
    with pytest.raises(StateLost, match="000005 is damaged"):
        read_log(tmp_path)


def test_a_log_remembers_a_limited_number_of_runs(objects: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "MAX_RUNS", 3)
    for _ in range(9):
        log = begin(objects)
    assert [start_of(epoch) for epoch in log.runs.epochs] == [7, 8, 9]
    assert len(list(objects.iterdir())) <= 4
    assert MAX_RUNS > 100


# Plans.


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
