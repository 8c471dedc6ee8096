"""The store: locking, checkpoints, retention, deleted topics, searches, and the state database."""

import errno
import fcntl
import os
import sqlite3
import stat
from pathlib import Path

import pytest
from tests.faulty_disk import FaultyDisk
from tests.log.conftest import SMALL, OpenStore, bodies, crash, log_files, message, read_all, send
from tests.wire.encoding import encode_batch

from lanemq.core.brokering.progress_store import ForgottenProgress, SavedOffset
from lanemq.log.folder.lock import DataLock, holder
from lanemq.log.options import StoreOptions
from lanemq.log.queue_index import SYNCED_TOGETHER
from lanemq.log.retention import SegmentFacts, expired_segments
from lanemq.log.state.database import ProducerRow, State
from lanemq.log.state.group_rows import LeaseRow
from lanemq.log.state.progress_rows import ProgressRows
from lanemq.log.store import Store
from lanemq.model.errors import CorruptRecord, InvalidOption, LogInUse, StorageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.wire.batch import PlainBatch
from lanemq.wire.record import RecordView


def keyed(key: str, unique: str = "") -> str:
    return f"KEYS\x01{key}\x02" + (f"UNIQ_KEY\x01{unique}\x02" if unique else "")


def test_a_second_broker_on_the_folder_is_refused_with_the_holder(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    with pytest.raises(LogInUse, match=str(os.getpid())):
        Store(tmp_path / "data", SMALL)
    store.close()
    open_store()


def test_a_deleted_lock_file_lets_no_second_broker_in(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the control: if only the file is locked, the second one opens the log of the first."""
    data = tmp_path / "data"
    store = open_store()
    (data / "lock").unlink()
    with pytest.raises(LogInUse, match=r"process unknown"):
        DataLock(data)
    assert not (data / "lock").exists(), "a refused start creates nothing"
    assert holder(data) == "unknown"
    store.close()
    assert holder(data) is None

    def file_only(fd: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EBADF, "this file system locks no folders")
        real_flock(fd, operation)

    real_flock = fcntl.flock
    monkeypatch.setattr("fcntl.flock", file_only)
    first = DataLock(data)
    with pytest.raises(LogInUse, match=str(os.getpid())):
        DataLock(data)
    (data / "lock").unlink()
    DataLock(data).close()
    first.close()


def test_readers_share_a_folder_and_keep_brokers_out(tmp_path: Path) -> None:
    first, second = DataLock(tmp_path, reading=True), DataLock(tmp_path, reading=True)
    with pytest.raises(LogInUse):
        DataLock(tmp_path)
    first.close()
    second.close()
    assert not list(tmp_path.iterdir()), "reading creates no file"
    DataLock(tmp_path).close()


def test_publishing_returns_the_queues_with_new_messages(open_store: OpenStore) -> None:
    store = open_store()
    store.appender.stage("a", 0, [message("x", 5), message("y", 6)], store_time=1)
    store.appender.stage("b", 3, [message("z")], store_time=1)
    pending = store.appender.take_pending()
    store.appender.flush(pending)
    arrivals = {(a.topic, a.queue_id): (a.max_offset, a.tag_codes) for a in store.appender.publish(pending)}
    assert arrivals == {("a", 0): (2, {5, 6}), ("b", 3): (1, {0})}


def test_a_batch_larger_than_its_segment_continues_in_the_next(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    texts = [f"{number:02d}" + "x" * 400 for number in range(30)]
    send(store, "first")
    staged = store.append("t", 0, [message(text) for text in texts], store_time=1)
    sizes = [path.stat().st_size for path in log_files(tmp_path / "data")]
    assert len(sizes) > 3
    assert max(sizes) <= SMALL.segment_bytes
    assert [RecordView(store.read_at(at)).body.decode() for at in staged.positions] == texts
    crash(store)
    assert read_all(open_store()) == (["first", *texts], [])


def test_a_batch_in_one_piece_continues_in_the_next_segment(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    texts = [f"{number:0500}" for number in range(20)]
    body = encode_batch([(0, text.encode(), "") for text in texts])
    staged = store.append("t", 0, PlainBatch(body, 20, 5, 0, 0), store_time=1)
    assert len(staged.positions) == 20
    sizes = [path.stat().st_size for path in log_files(tmp_path / "data")]
    assert len(sizes) > 1
    assert max(sizes) <= SMALL.segment_bytes
    assert read_all(store) == (texts, [])
    crash(store)
    assert read_all(open_store()) == (texts, [])


def test_pull_of_many_small_messages_gets_all_that_fit(open_store: OpenStore) -> None:
    """More entries than the first read takes."""
    store = open_store(options=StoreOptions())
    store.append("t", 0, [message("x")] * 3000, store_time=1)
    assert store.read("t", 0, 0, 2500, 2**20).count == 2500
    few = store.read("t", 0, 5, 2500, 10_000)
    assert 0 < few.count < 1024
    assert len(few.data) <= 10_000
    assert few.next_offset == 5 + few.count


def test_a_checkpoint_waits_until_its_mark_is_published(open_store: OpenStore) -> None:
    """Producer rows reflect staged records; saved before those are on disk, they could turn a repeat into a loss."""
    store = open_store()
    store.appender.stage("t", 0, [message("x")], store_time=1)
    mark = store.appender.staged
    assert store.checkpoints.take(mark) is None
    pending = store.appender.take_pending()
    store.appender.flush(pending)
    assert store.checkpoints.take(mark) is None
    store.appender.publish(pending)
    work = store.checkpoints.take(mark)
    assert work is not None
    store.checkpoints.write(work, [ProducerRow("t", 0, "p", "state")])
    store.checkpoints.finish(work)
    saved = store.state.checkpoint()
    assert saved is not None
    assert saved.position == mark
    assert store.state.producers() == [ProducerRow("t", 0, "p", "state")]


def test_records_published_during_a_checkpoint_are_not_lost(open_store: OpenStore) -> None:
    store = open_store()
    send(store, "a")
    work = store.checkpoints.take(store.appender.staged)
    assert work is not None
    send(store, "b")
    store.checkpoints.write(work)
    send(store, "c")
    store.checkpoints.finish(work)
    assert read_all(store) == (["a", "b", "c"], [])
    crash(store)
    assert read_all(open_store()) == (["a", "b", "c"], [])


class CountingFolders(FaultyDisk):
    """Counts how often a folder is synced."""

    def fsync_dir(self, path: Path) -> None:
        self.calls["fsync_dir"] += 1
        super().fsync_dir(path)


def test_a_checkpoint_syncs_each_new_file_and_its_folder_once_and_the_common_folder_once_for_many(
    open_store: OpenStore,
) -> None:
    disk = CountingFolders()
    store = open_store(disk=disk)
    for queue in range(SYNCED_TOGETHER + 6):
        send(store, "x", queue_id=queue)
    before = disk.calls.copy()
    store.checkpoint()
    assert disk.calls["fdatasync"] - before["fdatasync"] == SYNCED_TOGETHER + 6
    assert disk.calls["fsync_dir"] - before["fsync_dir"] == SYNCED_TOGETHER + 6 + 2
    crash(store)
    again = open_store()
    assert all(again.bounds("t", queue) == (0, 1) for queue in range(SYNCED_TOGETHER + 6))


def test_queues_start_later_after_old_segments_are_deleted(open_store: OpenStore, tmp_path: Path) -> None:
    options = StoreOptions(segment_bytes=4096, retention_ms=1000)
    store = open_store(options=options)
    for i in range(40):
        send(store, f"{i:02d}" + "x" * 400, store_time=i * 100)
        store.retention.note_if_grown(i * 100)
    send(store, "quiet", queue_id=9, store_time=4000)
    before = len(log_files(tmp_path / "data"))
    retired = store.retire(3500)
    store.delete_retired(retired)
    assert 0 < len(retired) == before - len(log_files(tmp_path / "data"))
    first, end = store.bounds("t", 0)
    assert 0 < first < 25
    assert end == 40
    assert [int(text[:2]) for text in read_all(store)[0]] == list(range(first, 40))
    assert store.read("t", 0, 0, 32, 1 << 20).next_offset == first
    crash(store)
    store = open_store(options=options)
    assert store.bounds("t", 0) == (first, 40)
    assert store.bounds("t", 9) == (0, 1)


def test_the_oldest_segments_go_if_only_deleted_topics_used_them(open_store: OpenStore, tmp_path: Path) -> None:
    options = StoreOptions(segment_bytes=4096)
    store = open_store(options=options)
    send(store, *["x" * 400] * 20, topic="gone")
    send(store, *["y" * 400] * 20)
    assert store.retire(0) == []
    store.drop_topic("gone")
    assert store.retire(0) == [], "a crash would bring the topic back, and its queues need a checkpoint then"
    store.checkpoint()
    before = len(log_files(tmp_path / "data"))
    store.delete_retired(store.retire(0))
    assert before - len(log_files(tmp_path / "data")) == 2
    assert (store.bounds("t", 0), len(read_all(store)[0])) == ((0, 20), 20)
    store.state.drop_topic("t", store.drop_topic("t"))
    store.checkpoint()
    store.delete_retired(store.retire(0))
    assert len(log_files(tmp_path / "data")) == 1, "the newest segment stays"
    send(store, "new")
    crash(store)
    assert read_all(open_store(options=options))[0] == ["new"]


def test_the_next_checkpoint_deletes_the_index_files_of_a_deleted_topic(open_store: OpenStore, tmp_path: Path) -> None:
    """Not the deletion itself: a topic may have a thousand of them, and the event loop would wait for all."""
    store = open_store()
    send(store, "a", topic="gone")
    send(store, "b")
    store.checkpoint()
    read_all(store)
    files = tmp_path / "data" / "index"
    assert len(list(files.rglob("0" * 20))) == 2
    store.state.drop_topic("gone", store.drop_topic("gone"))
    store.checkpoint()
    assert len(list(files.rglob("0" * 20))) == 1
    send(store, "c", topic="gone")
    store.checkpoint()
    assert (read_all(store)[0], read_all(store, topic="gone")[0]) == (["b"], ["c"])


@pytest.mark.parametrize("indexes_deleted", [False, True])
def test_a_queue_without_kept_records_continues_at_its_offset(
    open_store: OpenStore, tmp_path: Path, indexes_deleted: bool
) -> None:
    """Starting at 0 again would hide new messages from groups with higher offsets."""
    options = StoreOptions(segment_bytes=4096, retention_ms=1000)
    store = open_store(options=options)
    send(store, *"abc", queue_id=7, store_time=0)
    for i in range(20):
        send(store, "x" * 400, store_time=10_000 + i)
    store.retention.note_if_grown(10_000)
    store.delete_retired(store.retire(20_000))
    assert store.bounds("t", 7) == (3, 3)
    store.close()
    if indexes_deleted:
        for path in (tmp_path / "data" / "index").rglob("0" * 20):
            path.unlink()
    store = open_store(options=options)
    send(store, "d", queue_id=7)
    assert store.bounds("t", 7) == (3, 4)
    assert read_all(store, queue_id=7) == (["d"], [])


def test_the_oldest_segments_are_deleted_that_are_too_old_or_too_many() -> None:
    assert expired_segments([], 1000, None) == 0
    assert expired_segments([SegmentFacts(4000, 1001), SegmentFacts(4000, 1000)], 1000, None) == 1
    assert expired_segments([SegmentFacts(4000, 0), SegmentFacts(4000, 9999)], 1000, None) == 0, "in order of the log"
    assert expired_segments([SegmentFacts(4000, 0)] * 4, 1000, 10_000) == 2


def test_a_segment_continues_with_its_saved_age_after_a_restart(open_store: OpenStore) -> None:
    options = StoreOptions(segment_bytes=4096, retention_ms=1000)
    store = open_store(options=options)
    store.retention.begin(now=100, ages={})
    for _ in range(12):
        send(store, "x" * 400, store_time=5000)
    store.retention.note_if_grown(200)
    store.state.save_ages(store.retention.ages(600), wall=9)
    store.close()
    store = open_store(options=options)
    assert (store.state.ages(), store.state.last_run()) == ({0: 400}, 9)
    store.retention.begin(now=50, ages=store.state.ages())
    assert store.retire(650) == []
    assert store.retire(651) != []


def test_a_segment_without_a_saved_age_counts_from_the_start(open_store: OpenStore) -> None:
    options = StoreOptions(segment_bytes=4096, retention_ms=1000)
    store = open_store(options=options)
    for _ in range(12):
        send(store, "x" * 400, store_time=5000)
    store.close()
    store = open_store(options=options)
    assert (store.state.ages(), store.state.last_run()) == ({}, 0)
    store.retention.begin(now=50, ages=store.state.ages())
    assert store.retire(1050) == []
    assert store.retire(1051) != []


def test_unread_messages_below_a_position_are_counted(open_store: OpenStore) -> None:
    store = open_store()
    positions = store.append("t", 0, [message(text) for text in "abcd"], store_time=1).positions
    assert [len(store.unread_below("t", 0, offset, positions[2])) for offset in range(6)] == [2, 1, 0, 0, 0, 0]
    assert store.unread_below("t", 0, 0, store.log_end) == range(4)
    assert not store.unread_below("t", 1, 0, store.log_end)


def test_a_deleted_topic_is_unreachable_and_a_new_one_starts_at_zero(open_store: OpenStore) -> None:
    store = open_store()
    position = store.append("t", 0, [message("old", properties=keyed("k"))], store_time=1).positions[0]
    store.appender.stage("t", 0, [message("staged")], store_time=1)
    store.state.drop_topic("t", store.drop_topic("t"))
    pending = store.appender.take_pending()
    store.appender.flush(pending)
    assert store.appender.publish(pending) == []
    send(store, "new")
    for _ in range(2):
        assert store.bounds("t", 0) == (0, 1)
        assert read_all(store) == (["new"], [])
        assert store.query("t", "k", 10, 0, 10) == []
        with pytest.raises(CorruptRecord):
            store.read_at(position)
        crash(store)
        store = open_store()


def test_records_at_the_positions_of_lost_ones_of_a_deleted_topic_are_kept(open_store: OpenStore) -> None:
    """Records staged when the topic was deleted never reached the disk, so their positions are used again."""
    store = open_store()
    store.appender.stage("t", 0, [message("staged" * 100)], store_time=1)
    store.state.drop_topic("t", store.drop_topic("t"))
    crash(store)
    store = open_store()
    position = store.append("t", 0, [message("new", properties=keyed("k"))], store_time=1).positions[0]
    for _ in range(2):
        assert read_all(store) == (["new"], [])
        assert store.read_at(position)
        crash(store)
        store = open_store()


def test_a_topic_dropped_during_a_checkpoint_stays_dropped(open_store: OpenStore) -> None:
    store = open_store()
    send(store, "old")
    work = store.checkpoints.take(store.appender.staged)
    assert work is not None
    store.drop_topic("t")
    store.checkpoints.write(work)
    store.checkpoints.finish(work)
    assert store.state.queues() == []
    crash(store)
    assert open_store().bounds("t", 0) == (0, 0)


def test_messages_are_found_by_every_kind_of_key(open_store: OpenStore) -> None:
    store = open_store()
    for i in range(60):
        properties = keyed(f"k{i % 7} odd{i % 2}", f"ID{i}") + f"__SHARDINGKEY\x01order-{i % 5}\x02"
        store.append("t", i % 3, [message(f"{i}" + " " * 200, properties=properties)], store_time=i)
    store.append("other", 0, [message("x", properties=keyed("k1"))], store_time=99)

    def found(key: str, limit: int = 100, begin: int = 0, end: int = 100) -> list[int]:
        return [int(bodies(record)[0]) for record in store.query("t", key, limit, begin, end)]

    for _ in range(2):
        assert found("ID17") == [17]
        assert found("k1") == list(range(57, 0, -7))
        assert found("order-3", limit=2) == [58, 53]
        assert found("odd1", begin=10, end=14) == [13, 11]
        assert found("absent") == []
        store.close()
        store = open_store()


def test_a_key_is_found_in_its_topic_only(open_store: OpenStore) -> None:
    """Hashes may collide; the record decides."""
    store = open_store()
    position = store.append("t", 0, [message("x", properties=keyed("k"))], store_time=5).positions[0]
    assert store._keys._matching(position, "t", "k", 0, 9) is not None
    for topic, key, begin, end in (("u", "k", 0, 9), ("t", "j", 0, 9), ("t", "k", 6, 9), ("t", "k", 0, 4)):
        assert store._keys._matching(position, topic, key, begin, end) is None


def test_damaged_key_files_are_rebuilt(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    for i in range(60):
        store.append("t", 0, [message("x" * 200, properties=keyed(f"k{i}"))], store_time=1)
    assert len(store.query("t", "k3", 1, 0, 9)) == 1
    store.close()
    for path in (tmp_path / "data" / "keys").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert len(open_store().query("t", "k3", 1, 0, 9)) == 1


def test_a_damaged_state_database_stops_the_start(open_store: OpenStore, tmp_path: Path) -> None:
    """Starting with empty tables would send every group to a default position."""
    store = open_store()
    send(store, "x")
    store.close()
    path = tmp_path / "data" / "state.db"
    path.write_bytes(b"no database " * 1000)
    with pytest.raises(StorageError, match="restore it from a backup"):
        open_store()
    path.unlink()
    with pytest.raises(StorageError, match="is missing"):
        open_store()


def test_state_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    state = State(tmp_path / "state.db")
    state.save_topic("t", "{}")
    state.save_group("g", "{}")
    queue = MessageQueue("t", "broker", 0)
    offsets = [SavedOffset("g", queue, QueueOffset(5)), SavedOffset("h", queue, QueueOffset(6), True, "1,2")]
    ProgressRows(state).save(offsets, synced=False)
    lease = LeaseRow("g", "t", "broker", 0, "owner", 3, 1000, False)
    state.save_leases([lease])
    state.save_leases([lease._replace(epoch=2, owner="late")])
    state.put("name", "value")
    state.close()
    state = State(tmp_path / "state.db")
    assert (state.topics(), state.groups(), state.get("name")) == ({"t": "{}"}, {"g": "{}"}, "value")
    assert ProgressRows(state).offsets() == offsets
    assert state.leases() == [lease]
    state.delete_group("g")
    ProgressRows(state).save([ForgottenProgress(group="g")], synced=True)
    assert (state.groups(), ProgressRows(state).offsets()) == ({}, offsets[1:])
    state.close()


def test_a_failed_transaction_leaves_nothing_behind(tmp_path: Path) -> None:
    state = State(tmp_path / "state.db")
    row = SavedOffset("g", MessageQueue("t", "b", 0), QueueOffset(5))
    with pytest.raises(StorageError):
        ProgressRows(state).save([row, row._replace(offset=[])], synced=False)  # type: ignore[arg-type]
    assert ProgressRows(state).offsets() == []
    state.close()


def test_a_database_of_another_version_is_not_misread(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "state.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StorageError, match="newer version"):
        State(tmp_path / "state.db")


def test_all_invalid_options_are_reported() -> None:
    with pytest.raises(InvalidOption, match=r"segment_bytes.*retention_ms"):
        StoreOptions(segment_bytes=1, retention_ms=0)
