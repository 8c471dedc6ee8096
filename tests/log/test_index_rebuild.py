"""Lost indexes are rebuilt while the store is in use: what is read is right or refused, and a crash loses nothing."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.conftest import SMALL, OpenStore, bodies, crash, log_files, memory_folder, read_all, send

from lanemq.log import index_rebuild
from lanemq.log.queue_index import QueueTable
from lanemq.log.reading import Boundary
from lanemq.log.store import Store
from lanemq.model.errors import StillRebuilding

BEFORE = 60
AFTER = 9


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_rebuild, "WINDOW_BYTES", 600)


@pytest.fixture
def without_indexes(in_memory: Path, open_store: OpenStore) -> Path:
    """A folder with messages below and after a checkpoint, in three queues, killed, and its indexes deleted."""
    folder = in_memory / "data"
    fill(folder, open_store)
    return folder


def fill(folder: Path, open_store: OpenStore) -> None:
    store = open_store(folder)
    for i in range(BEFORE):
        send(store, f"{i}", queue_id=i % 3, store_time=i)
    store.checkpoint()
    for i in range(BEFORE, BEFORE + AFTER):
        send(store, f"{i}", queue_id=i % 3, store_time=i)
    crash(store)
    shutil.rmtree(folder / "index")


def started(folder: Path) -> Store:
    """A store whose rebuild has not begun."""
    store = Store(folder, SMALL)
    store.recover(rebuild_later=True)
    assert store.rebuild is not None
    return store


def step(store: Store, max_bytes: int = 1000) -> None:
    rebuild = store.rebuild
    assert rebuild is not None
    store.enter_rebuilt(rebuild, rebuild.read(max_bytes))


def expected(queue_id: int) -> list[str]:
    return [f"{i}" for i in range(BEFORE + AFTER) if i % 3 == queue_id]


def check_everything_readable_is_right(store: Store) -> int:
    """Each offset is right or refused; returns how many are readable."""
    readable = 0
    for queue_id in range(3):
        wanted = expected(queue_id)
        assert store.bounds("t", queue_id) == (0, len(wanted))
        for offset in range(len(wanted)):
            try:
                result = store.read("t", queue_id, offset, 1000, 1 << 20)
            except StillRebuilding:
                continue
            assert result.next_offset > offset, "a reader would ask for ever"
            assert result.damaged == []
            assert bodies(result.data) == wanted[offset : result.next_offset]
            readable += 1
    return readable


def test_what_is_readable_during_a_rebuild_is_right_and_the_rest_is_refused(without_indexes: Path) -> None:
    store = started(without_indexes)
    readable = [check_everything_readable_is_right(store)]
    assert readable == [AFTER]  # only what was logged after the checkpoint
    while store.rebuild is not None:
        step(store)
        readable.append(check_everything_readable_is_right(store))
        if len(readable) % 3 == 0:
            store.checkpoint()
    assert len(readable) > 5
    assert readable == sorted(readable)
    assert readable[-1] == BEFORE + AFTER
    crash(store)


def test_messages_stored_during_a_rebuild_continue_their_queues(without_indexes: Path, open_store: OpenStore) -> None:
    store = started(without_indexes)
    send(store, "new 1")
    step(store)
    store.checkpoint()
    send(store, "new 2")
    while store.rebuild is not None:
        step(store)
    assert read_all(store)[0] == [*expected(0), "new 1", "new 2"]
    store.checkpoint()
    assert not store.state.rebuild_requested()
    send(store, "new 3")
    crash(store)
    store = open_store(without_indexes)
    assert store.rebuild is None
    assert read_all(store)[0] == [*expected(0), "new 1", "new 2", "new 3"]
    assert read_all(store, queue_id=1) == (expected(1), [])


@settings(deadline=None, max_examples=20)
@given(st.lists(st.sampled_from(["step", "checkpoint", "send", "crash", "stop"]), max_size=14))
def test_crashes_and_stops_during_a_rebuild_lose_nothing(actions: list[str]) -> None:
    root = memory_folder()
    try:
        opened: list[Store] = []

        def open_one(folder: Path) -> Store:
            opened.append(Store(folder, SMALL))
            opened[-1].recover()
            return opened[-1]

        fill(root / "data", open_one)
        store, sent = started(root / "data"), expected(2)
        for number, action in enumerate(actions):
            if action == "step" and store.rebuild is not None:
                step(store, 3000)
            elif action == "checkpoint":
                store.checkpoint()
            elif action == "send":
                sent.append(f"sent {number}")
                send(store, sent[-1], queue_id=2)
            elif action in ("crash", "stop"):
                store.close() if action == "stop" else crash(store)
                store = Store(root / "data", SMALL)
                store.recover(rebuild_later=True)
            assert store.bounds("t", 2) == (0, len(sent))
        while store.rebuild is not None:
            step(store, 3000)
        assert read_all(store, queue_id=0) == (expected(0), [])
        assert read_all(store, queue_id=2) == (sent, [])
        store.checkpoint()
        crash(store)
        store = open_one(root / "data")
        assert read_all(store, queue_id=2) == (sent, [])
        crash(store)
    finally:
        shutil.rmtree(root)


def test_control_without_the_request_on_disk_a_crash_during_a_rebuild_makes_messages_unreadable(
    without_indexes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints during a rebuild rely on the request: without it, half an index would pass for a whole one."""
    store = started(without_indexes)
    step(store, 3000)
    store.checkpoint()
    store.state.request_rebuild(wanted=False)
    monkeypatch.setattr("lanemq.log.queue_index.IndexFiles.complete", lambda _files, _queue: True)
    crash(store)
    store = Store(without_indexes, SMALL)
    store.recover()
    with pytest.raises(Exception, match="index"):
        assert read_all(store) == (expected(0), [])
    crash(store)


def test_control_without_the_refusal_a_reader_would_be_given_nothing_or_the_wrong_messages(
    without_indexes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueTable, "readable_end", lambda _table, queue, _offset: queue.end)
    store = started(without_indexes)
    with pytest.raises(AssertionError, match="ask for ever"):
        check_everything_readable_is_right(store)
    crash(store)


def test_a_deleted_topic_is_left_out_of_the_rebuild(without_indexes: Path) -> None:
    store = started(without_indexes)
    step(store)
    store.state.drop_topic("t", store.drop_topic("t"))
    send(store, "again")
    while store.rebuild is not None:
        step(store)
    store.checkpoint()
    assert store.indexes_complete
    assert read_all(store) == (["again"], [])
    crash(store)


def test_damage_below_the_checkpoint_keeps_its_offset(without_indexes: Path, open_store: OpenStore) -> None:
    path = log_files(without_indexes)[0]
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    store = started(without_indexes)
    while store.rebuild is not None:
        step(store)
    found = [read_all(store, queue_id=queue_id) for queue_id in range(3)]
    damaged = [(queue_id, offset) for queue_id in range(3) for offset in found[queue_id][1]]
    assert len(damaged) == 1
    assert sum(len(texts) for texts, _ in found) == BEFORE + AFTER - 1
    assert store.checkpoints.damaged_places == 1
    store.checkpoint()
    crash(store)
    assert [read_all(open_store(without_indexes), queue_id=damaged[0][0])] == [found[damaged[0][0]]]


def test_searches_by_time_are_refused_until_they_can_be_answered(without_indexes: Path) -> None:
    store = started(without_indexes)
    with pytest.raises(StillRebuilding):
        store.times.find("t", 0, 30, Boundary.LOWER)
    while store.rebuild is not None:
        step(store)
    assert store.times.find("t", 0, 30, Boundary.LOWER) == 10
    crash(store)


def test_queues_whose_first_messages_were_deleted_begin_where_the_log_does(
    in_memory: Path, open_store: OpenStore
) -> None:
    store = open_store(in_memory / "data")
    for i in range(120):
        send(store, f"{i}", queue_id=i % 3)
    send(store, "old", queue_id=7, topic="gone")
    store.checkpoint()
    before = len(store._log.segments)
    assert before > 2
    store._log.close_retired(store._log.retire(2))
    wanted = [store.bounds("t", queue_id) for queue_id in range(3)]
    assert wanted[0][0] > 0
    texts = [read_all(store, queue_id=queue_id) for queue_id in range(3)]
    crash(store)
    shutil.rmtree(in_memory / "data" / "index")
    store = started(in_memory / "data")
    assert [store.bounds("t", queue_id)[1] for queue_id in range(3)] == [end for _, end in wanted]
    assert all(store.bounds("t", queue_id)[0] <= wanted[queue_id][0] for queue_id in range(3))
    while store.rebuild is not None:
        step(store)
    assert [store.bounds("t", queue_id) for queue_id in range(3)] == wanted
    assert [read_all(store, queue_id=queue_id) for queue_id in range(3)] == texts
    crash(store)


@pytest.mark.parametrize("to_the_end", [True, False])
def test_queues_that_grew_while_a_checkpoint_was_taken_are_rebuilt_without_a_hole(
    in_memory: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, to_the_end: bool
) -> None:
    """Their rows are newer than the position of the checkpoint. A rebuild up to that position leaves messages out."""
    folder = in_memory / "data"
    store = open_store(folder)
    for i in range(BEFORE):
        send(store, f"{i}", queue_id=i % 3, store_time=i)
    mark = store.appender.staged
    for i in range(BEFORE, BEFORE + AFTER):
        send(store, f"{i}", queue_id=i % 3, store_time=i)
    work = store.checkpoints.take(mark)
    assert work is not None
    store.checkpoints.write(work, [], ())
    store.checkpoints.finish(work)
    crash(store)
    shutil.rmtree(folder / "index")
    if not to_the_end:
        begin = index_rebuild.IndexRebuild
        monkeypatch.setattr("lanemq.log.store.IndexRebuild", lambda log, table, gone, _: begin(log, table, gone, mark))
    again = Store(folder, SMALL)
    again.recover()
    found = [read_all(again, queue_id=queue_id)[0] for queue_id in range(3)]
    assert (found == [expected(queue_id) for queue_id in range(3)]) is to_the_end
    again.close()
