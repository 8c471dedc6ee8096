"""Reads in every state of a queue."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.conftest import SMALL, OpenStore, bodies, crash, log_files, message, read_all, send
from tests.wire.encoding import encode_record

from lanemq.log.commit_log import CommitLog
from lanemq.log.filesystem import RealDisk
from lanemq.log.options import StoreOptions
from lanemq.log.queue_index import (
    IndexFiles,
    IndexLost,
    IndexPart,
    QueueIndex,
    pack_entry,
    unpack_entries,
)
from lanemq.log.reading import Boundary, ReadStatus, adjacent_runs, gather, read_adjacent, verify
from lanemq.log.state.database import QueueRow
from lanemq.model.errors import CorruptRecord
from lanemq.model.java_hash import java_string_hash

BIG = 1 << 20


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (0, ReadStatus.FOUND, 3),
        (2, ReadStatus.FOUND, 3),
        (3, ReadStatus.AT_END, 3),
        (4, ReadStatus.BEYOND_END, 3),
        (-1, ReadStatus.TOO_SMALL, 0),
    ],
)
def test_the_offset_decides_the_status(open_store: OpenStore, offset: int, status: ReadStatus, following: int) -> None:
    store = open_store()
    send(store, "a", "b", "c")
    result = store.read("t", 0, offset, 32, BIG)
    assert (result.status, result.next_offset) == (status, following)
    assert (result.min_offset, result.max_offset) == (0, 3)


@pytest.mark.parametrize(("offset", "status"), [(0, ReadStatus.EMPTY), (5, ReadStatus.EMPTY_ILLEGAL)])
def test_an_unknown_queue_is_an_empty_one(open_store: OpenStore, offset: int, status: ReadStatus) -> None:
    result = open_store().read("absent", 0, offset, 32, BIG)
    assert (result.status, result.next_offset, result.max_offset) == (status, 0, 0)


def test_count_and_bytes_limit_a_pull_but_one_message_always_fits(open_store: OpenStore) -> None:
    store = open_store()
    send(store, *"abcdef")
    assert bodies(store.read("t", 0, 1, 2, BIG).data) == ["b", "c"]
    size = len(store.read("t", 0, 0, 1, BIG).data)
    assert bodies(store.read("t", 0, 0, 32, 3 * size + 1).data) == ["a", "b", "c"]
    result = store.read("t", 0, 0, 32, 1)
    assert (bodies(result.data), result.next_offset) == (["a"], 1)


@pytest.mark.parametrize("indexed", [False, True])
def test_records_of_mixed_queues_come_back_in_order(open_store: OpenStore, indexed: bool) -> None:
    """Half of the entries may be in the index file and half in memory."""
    store = open_store()
    for i in range(60):
        send(store, f"{i}", f"{i}+", queue_id=i % 3)
        if indexed and i == 30:
            store.checkpoint()
    expected = [text for i in range(60) if i % 3 == 1 for text in (f"{i}", f"{i}+")]
    assert read_all(store, queue_id=1) == (expected, [])


def test_batches_of_a_queue_are_read_in_one_piece_each(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store, reads = open_store(), []
    for number in range(6):
        send(store, *(f"{number}.{i}" for i in range(20)), queue_id=number % 2)
    read = CommitLog.read

    def counted(log: CommitLog, position: int, size: int) -> bytes:
        reads.append(size)
        return read(log, position, size)

    monkeypatch.setattr(CommitLog, "read", counted)
    result = store.read("t", 0, 0, 50, BIG)
    assert bodies(result.data) == [f"{number}.{i}" for number in (0, 2, 4) for i in range(20)][:50]
    assert (result.count, result.next_offset) == (50, 50)
    assert len(reads) == 3


class LogOfBytes:
    """A log that begins at position 1,000."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, position: int, size: int) -> bytes:
        return self.data[position - 1_000 : position - 1_000 + size]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 20)), min_size=1, max_size=6),
    st.integers(1, 5_000),
    st.integers(0, 5_000) | st.none(),
)
def test_adjacent_records_are_read_as_any_others_or_left_to_the_usual_way(
    batches: list[tuple[int, int]], most: int, damaged_at: int | None
) -> None:
    """Whatever the layout of the log is, and whether or not a byte of it is damaged."""
    whole, entries, records = b"", [], [0, 0]
    for queue, count in batches:
        for _ in range(count):
            record = encode_record(
                topic="t", body=b"x", queue_id=queue, queue_offset=records[queue], position=1_000 + len(whole)
            )
            if queue == 0:
                entries.append((1_000 + len(whole), len(record), 0))
            records[queue] += 1
            whole += record
    if damaged_at is not None and damaged_at < len(whole):
        whole = bytes([*whole[:damaged_at], whole[damaged_at] ^ 1, *whole[damaged_at + 1 :]])
    raw = b"".join(pack_entry(offset, *entry) for offset, entry in enumerate(entries))
    runs = adjacent_runs(raw, most)
    assert runs is not None
    found = read_adjacent(LogOfBytes(whole), 0, 0, raw, runs) if runs else None
    usual = gather(LogOfBytes(whole), 0, 0, unpack_entries(raw), range(len(entries)), most) if entries else None
    assert found is None or found == usual
    if found is None and usual is not None:
        assert usual.damaged or len(runs) > 1


def test_a_tag_filter_skips_other_messages(open_store: OpenStore) -> None:
    store = open_store()
    tags = {name: java_string_hash(name) for name in ("red", "blue")}
    for i in range(10):
        name = "red" if i % 5 == 4 else "blue"
        store.append("t", 0, [message(f"{i}", tags[name], f"TAGS\x01{name}\x02")], store_time=1)
    result = store.read("t", 0, 0, 32, BIG, frozenset({tags["red"]}))
    assert (bodies(result.data), result.next_offset) == (["4", "9"], 10)
    result = store.read("t", 0, 0, 1, BIG, frozenset({tags["red"]}))
    assert bodies(result.data) == ["4"]
    assert 5 <= result.next_offset <= 9
    result = store.read("t", 0, 0, 32, BIG, frozenset({1}))
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCH, 10)


@pytest.mark.parametrize(("start", "end", "left_out"), [(0, 10, 8), (3, 5, 1), (9, 99, 0), (20, 30, 0)])
def test_what_a_tag_filter_leaves_out_is_what_a_read_with_it_skips(
    open_store: OpenStore, start: int, end: int, left_out: int
) -> None:
    store = open_store()
    red = frozenset({java_string_hash("red")})
    for i in range(10):
        name = "red" if i % 5 == 4 else "blue"
        store.append("t", 0, [message(f"{i}", java_string_hash(name), f"TAGS\x01{name}\x02")], store_time=1)
    found = [offset for step in store.left_out("t", 0, start, end, red) for offset in step]
    assert found == [offset for offset in range(start, min(end, 10)) if offset % 5 != 4]
    assert len(found) == left_out
    assert list(store.left_out("other", 0, start, end, red)) == []


def test_tag_codes_are_rebuilt_from_the_records(open_store: OpenStore) -> None:
    store = open_store()
    code = java_string_hash("red")
    store.append("t", 0, [message("a", code, "TAGS\x01red\x02")], store_time=1)
    crash(store)
    assert open_store().read("t", 0, 0, 32, BIG, frozenset({code})).count == 1


def test_a_record_damaged_after_it_was_written_is_reported_by_its_offset(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    send(store, "aaaa", "bbbb", "cccc")
    path = log_files(tmp_path / "data")[0]
    path.write_bytes(path.read_bytes().replace(b"bbbb", b"bxbb"))
    result = store.read("t", 0, 0, 32, BIG)
    assert (bodies(result.data), result.damaged, result.next_offset) == (["aaaa", "cccc"], [1], 3)
    only = store.read("t", 0, 1, 1, BIG)
    assert (only.status, only.damaged, only.next_offset) == (ReadStatus.NO_MATCH, [1], 2)
    store.checkpoint()
    assert len(store.state.damage()) == 1


def test_an_index_with_a_wrong_position_is_noticed_and_rebuilt(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    send(store, *"abc")
    store.close()
    path = next((tmp_path / "data" / "index").rglob("0" * 20))
    data = bytearray(path.read_bytes())
    data[160 + 20 + 7] ^= 1
    path.write_bytes(data)
    store = open_store()
    with pytest.raises(IndexLost):
        store.read("t", 0, 0, 32, BIG)
    crash(store)
    assert read_all(open_store()) == (["a", "b", "c"], [])


def test_a_wrong_tag_in_an_index_does_not_hide_a_message(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.append("t", 0, [message("a", 7)], store_time=1)
    store.close()
    path = next((tmp_path / "data" / "index").rglob("0" * 20))
    data = bytearray(path.read_bytes())
    data[160 + 15] ^= 1
    path.write_bytes(data)
    with pytest.raises(IndexLost):
        open_store().read("t", 0, 0, 32, BIG, frozenset({7}))


def test_read_at_gives_one_record_and_only_at_its_position(open_store: OpenStore) -> None:
    store = open_store()
    staged = store.append("t", 0, [message("a"), message("b")], store_time=1)
    assert bodies(store.read_at(staged.positions[1])) == ["b"]
    for wrong in (staged.positions[1] + 1, store.log_end, -5):
        with pytest.raises(CorruptRecord):
            store.read_at(wrong)


def test_an_offset_is_found_by_time(open_store: OpenStore) -> None:
    store = open_store()
    for time in (100, 200, 200, 300):
        send(store, "x", store_time=time)
    lower = [store.times.find("t", 0, time, Boundary.LOWER) for time in (50, 100, 150, 200, 250, 300, 301)]
    upper = [store.times.find("t", 0, time, Boundary.UPPER) for time in (50, 100, 150, 200, 250, 300, 301)]
    assert lower == [0, 0, 1, 1, 3, 3, 4]
    assert upper == [0, 0, 0, 2, 2, 3, 3]
    assert store.times.earliest("t", 0) == 100
    assert store.times.earliest("t", 1) is None
    assert store.times.find("t", 1, 100, Boundary.LOWER) == 0


def test_store_times_never_go_back(open_store: OpenStore) -> None:
    """A clock that jumps back would otherwise break every search by time, also after a restart."""
    store = open_store()
    send(store, "x", store_time=5000)
    assert store.append("t", 0, [message("y")], store_time=10).store_time == 5000
    crash(store)
    assert open_store().append("t", 0, [message("z")], store_time=10).store_time == 5000


def test_a_record_never_spans_two_segments(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    for i in range(40):
        send(store, f"{i:03d}" + "x" * 400)
    files = log_files(tmp_path / "data")
    assert len(files) > 3
    assert all(path.stat().st_size <= SMALL.segment_bytes for path in files)
    assert [text[:3] for text in read_all(store)[0]] == [f"{i:03d}" for i in range(40)]
    crash(store)
    assert len(read_all(open_store())[0]) == 40


def test_a_record_larger_than_a_segment_gets_its_own(open_store: OpenStore) -> None:
    store = open_store()
    send(store, "small", "x" * 9000, "small again")
    assert [len(text) for text in read_all(store)[0]] == [5, 9000, 11]


def test_thousands_of_queues_share_few_open_files(open_store: OpenStore, in_memory: Path) -> None:
    options = StoreOptions(max_open_indexes=8)
    store = open_store(in_memory / "data", options)
    for queue_id in range(2000):
        store.appender.stage("t", queue_id, [message(f"{queue_id}")], store_time=1)
    pending = store.appender.take_pending()
    store.appender.flush(pending)
    assert len(store.appender.publish(pending)) == 2000
    store.checkpoint()
    assert all(read_all(store, queue_id=q) == ([f"{q}"], []) for q in range(0, 2000, 50))
    assert len(store._files._open) == 8


def test_the_index_file_of_another_queue_is_not_read(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    for queue_id in (0, 1):
        send(store, f"{queue_id}", queue_id=queue_id)
    store.close()
    index = tmp_path / "data" / "index"
    (index / "0").rename(index / "swap")
    (index / "1").rename(index / "0")
    (index / "swap").rename(index / "1")
    store = open_store()
    with pytest.raises(IndexLost):
        read_all(store)
    crash(store)
    assert read_all(open_store()) == (["0"], [])


def test_a_reused_index_number_starts_with_an_empty_file(tmp_path: Path) -> None:
    """After a crash a number may belong to another queue, whose index must not contain the old entries."""
    files = IndexFiles(tmp_path, RealDisk(), 4, on_lost=lambda: None)
    old, new = QueueIndex(0, "old", 0), QueueIndex(0, "new", 0, end=1)
    row = QueueRow(0, "t", 0, 0, 0)
    files.write([IndexPart(old, old, 0, 0, pack_entry(0, 11, 100, 0) + pack_entry(1, 22, 100, 0), row)])
    files.write([IndexPart(new, new, 0, 0, pack_entry(0, 33, 100, 0), row)])
    assert files.read(new, 0, 1) == pack_entry(0, 33, 100, 0)
    with pytest.raises(IndexLost):
        files.read(new, 1, 1)
    files.close()


@pytest.mark.parametrize(("queue_id", "offset", "position"), [(1, 7, 500), (0, 8, 500), (0, 7, 501)])
def test_an_intact_record_in_the_wrong_place_is_not_given_out(queue_id: int, offset: int, position: int) -> None:
    record = encode_record(topic="t", body=b"x", queue_id=0, queue_offset=7, position=500)
    assert verify(record, 0, [(500, len(record), 0, 0)], [7]) == []
    assert verify(record, queue_id, [(position, len(record), 0, 0)], [offset]) == [0]
