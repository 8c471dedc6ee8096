"""Recovery after crashes, cuts and flipped bits."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.log.conftest import SMALL, OpenStore, crash, log_files, message, read_all, send
from tests.wire.encoding import encode_record

from lanemq.log.appender import NewRecord
from lanemq.log.store import Store
from lanemq.model.errors import StorageError
from lanemq.wire.record import RecordView, record_starts

TEXTS = [f"message {i}" for i in range(6)]


@pytest.fixture
def crashed(in_memory: Path, open_store: OpenStore) -> Path:
    """A folder whose broker was killed after six acknowledged messages to two queues."""
    folder = in_memory / "crashed"
    store = open_store(folder)
    for i, text in enumerate(TEXTS):
        send(store, text, queue_id=i % 2)
    crash(store)
    return folder


def reopened(folder: Path, copy: Path) -> Store:
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(folder, copy)
    return Store(copy, SMALL)


def bodies_of(data: bytes, size: int) -> list[bytes]:
    return [RecordView(data, start).body for start in record_starts(data[:size])]


def ends(folder: Path) -> list[int]:
    """Where each record of the only segment ends."""
    data = log_files(folder)[0].read_bytes()
    found, at = [], 0
    while at < len(data):
        at += int.from_bytes(data[at : at + 4], "big")
        found.append(at)
    return found


def test_every_acknowledged_record_survives_a_kill(crashed: Path, in_memory: Path) -> None:
    store = reopened(crashed, in_memory / "copy")
    report = store.recover()
    assert (report.clean, report.scanned, report.torn_bytes) == (False, 6, 0)
    assert read_all(store, queue_id=0) == (TEXTS[::2], [])
    assert read_all(store, queue_id=1) == (TEXTS[1::2], [])
    crash(store)


@pytest.mark.slow
def test_a_cut_at_any_byte_loses_only_the_records_it_touches(crashed: Path, in_memory: Path) -> None:
    """The log may end anywhere after a power cut; whole records before the cut must all be there."""
    limits = ends(crashed)
    for cut in range(limits[2], limits[-1]):
        store = reopened(crashed, in_memory / "copy")
        with log_files(in_memory / "copy")[0].open("r+b") as file:
            file.truncate(cut)
        crash(store)
        store = Store(in_memory / "copy", SMALL)
        report = store.recover()
        whole = sum(end <= cut for end in limits)
        found = read_all(store, queue_id=0)[0] + read_all(store, queue_id=1)[0]
        assert sorted(found) == TEXTS[:whole], cut
        assert report.torn_bytes == cut - ([0, *limits][whole])
        send(store, "after")
        assert read_all(store)[0][-1] == "after"
        crash(store)


@pytest.mark.parametrize("damaged", [False, True], ids=["intact", "damaged before it"])
def test_a_file_that_became_shorter_stops_the_start_and_nothing_is_cut(
    crashed: Path, in_memory: Path, damaged: bool
) -> None:
    """The records before the missing bytes are intact; a start that treats them as torn would cut them."""
    store = reopened(crashed, in_memory / "copy")
    path = log_files(in_memory / "copy")[0]
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(len(whole) - 10)
        if damaged:
            file.seek(ends(crashed)[0] + 30)
            file.write(b"!!!!")
    left = path.read_bytes()
    with pytest.raises(StorageError, match="Nothing was cut"):
        store.recover()
    crash(store)
    assert path.read_bytes() == left
    path.write_bytes(whole)
    store = Store(in_memory / "copy", SMALL)
    assert store.recover().torn_bytes == 0
    assert read_all(store, queue_id=1) == (TEXTS[1::2], [])
    crash(store)


@pytest.mark.slow
def test_a_flipped_bit_never_gives_a_wrong_record_and_never_costs_an_intact_one(crashed: Path, in_memory: Path) -> None:
    limits = [0, *ends(crashed)]
    for at in range(limits[-1]):
        store = reopened(crashed, in_memory / "copy")
        path = log_files(in_memory / "copy")[0]
        data = bytearray(path.read_bytes())
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        crash(store)
        store = Store(in_memory / "copy", SMALL)
        report = store.recover()
        hurt = next(i for i, end in enumerate(limits[1:]) if at < end)
        intact = [text for i, text in enumerate(TEXTS) if i != hurt]
        even, odd = read_all(store, queue_id=0), read_all(store, queue_id=1)
        assert sorted(even[0] + odd[0]) == sorted(intact), at
        if hurt < 5:
            assert [row.position for row in report.damage] == [limits[hurt]], at
            # The last record of a queue keeps its offset only if its head is readable.
            if hurt < 4:
                assert (even, odd)[hurt % 2][1] == [hurt // 2], at
        crash(store)


def test_damage_in_the_middle_is_reported_and_saved(crashed: Path, tmp_path: Path) -> None:
    limits = ends(crashed)
    path = log_files(crashed)[0]
    data = bytearray(path.read_bytes())
    data[limits[1] + 100] ^= 1
    path.write_bytes(data)
    store = Store(crashed, SMALL)
    report = store.recover()
    assert [(row.position, row.length) for row in report.damage] == [(limits[1], limits[2] - limits[1])]
    assert [row.position for row in store.state.damage()] == [limits[1]]
    result = store.read("t", 0, 1, 32, 1 << 20)
    assert (result.damaged, result.next_offset, result.count) == ([1], 3, 1)
    crash(store)


def test_a_damaged_last_record_of_a_queue_keeps_its_offset(crashed: Path, tmp_path: Path) -> None:
    """Otherwise the next message would get an offset that a consumer has already passed."""
    limits = ends(crashed)
    path = log_files(crashed)[0]
    data = bytearray(path.read_bytes())
    data[limits[4] - 6] ^= 1
    path.write_bytes(data)
    store = Store(crashed, SMALL)
    store.recover()
    assert store.bounds("t", 0) == (0, 3)
    assert read_all(store) == (["message 0", "message 2"], [2])
    crash(store)


def torn_group(folder: Path, *texts: str, torn: int) -> None:
    """Append one more group commit, of which a power cut left everything but one record."""
    store = Store(folder, SMALL)
    store.recover()
    send(store, *texts)
    crash(store)
    path = log_files(folder)[-1]
    data = bytearray(path.read_bytes())
    start = [0, *ends(folder)][-1 - len(texts) + torn]
    data[start : start + 60] = bytes(60)
    path.write_bytes(data)


@pytest.mark.parametrize("torn", range(3))
def test_nothing_after_a_torn_record_counts_in_a_group_that_was_not_acknowledged(crashed: Path, torn: int) -> None:
    """If its end counted as stored, the repeat of its middle would be refused as a duplicate."""
    torn_group(crashed, "a", "b", "c", torn=torn)
    store = Store(crashed, SMALL)
    seen: list[bytes] = []
    report = store.recover(lambda data, size: seen.extend(bodies_of(data, size)))
    assert seen == [b"a", b"b", b"c"][:torn]
    assert (report.damage, report.torn_bytes > 0) == ([], True)
    assert read_all(store) == (["message 0", "message 2", "message 4", *"abc"[:torn]], [])
    send(store, "after")
    assert read_all(store)[0][-1] == "after"
    crash(store)


def test_everything_before_a_later_group_or_segment_was_synced(tmp_path: Path, open_store: OpenStore) -> None:
    """A segment is synced before the next one is created, with or without marked records."""
    store = open_store()
    first = store.appender.stage("t", 0, [message("x" * 3000), message("damaged")], store_time=1).positions
    store.appender.stage("t", 0, [message("y" * 3000)], store_time=1)
    pending = store.appender.take_pending()
    store.appender.flush(pending)
    crash(store)
    one, two = log_files(tmp_path / "data")
    with one.open("r+b") as file:
        file.seek(first[1] + 90)
        file.write(b"????")
    with two.open("r+b") as file:
        file.seek(76)
        file.write(bytes(8))
    store = Store(tmp_path / "data", SMALL)
    report = store.recover()
    assert [row.position for row in report.damage] == [first[1]]
    assert report.torn_bytes == 3000 + 91 + 1
    crash(store)


def test_damage_that_reaches_over_the_checkpoint_is_cut_only_above_it(crashed: Path, open_store: OpenStore) -> None:
    store = open_store(crashed)
    known = store.log_end
    send(store, "torn")
    crash(store)
    path = log_files(crashed)[0]
    data = bytearray(path.read_bytes())
    data[known - 20 : known + 20] = bytes(40)
    path.write_bytes(data)
    shutil.rmtree(crashed / "index")
    store = Store(crashed, SMALL)
    report = store.recover()
    assert store.log_end == known
    assert [row.position + row.length for row in report.damage] == [known]
    crash(store)


def test_a_torn_end_is_kept_in_a_side_file(crashed: Path) -> None:
    path = log_files(crashed)[0]
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:50])
    store = Store(crashed, SMALL)
    report = store.recover()
    assert report.torn_bytes == 50
    assert report.torn_file is not None
    assert report.torn_file.read_bytes() == whole[:50]
    assert path.read_bytes() == whole
    crash(store)


def test_the_end_is_not_cut_below_the_checkpoint(crashed: Path, open_store: OpenStore) -> None:
    """Everything below a checkpoint was synced: if it is unreadable now, that is damage, not a torn write."""
    crash(open_store(crashed))
    path = log_files(crashed)[0]
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    shutil.rmtree(crashed / "index")
    store = Store(crashed, SMALL)
    report = store.recover()
    assert report.torn_bytes == 0
    assert len(report.damage) == 1
    assert read_all(store, queue_id=1) == (["message 1", "message 3"], [2])
    crash(store)


def test_a_shortened_log_leaves_a_hole_and_positions_are_not_used_again(crashed: Path, open_store: OpenStore) -> None:
    crash(open_store(crashed))
    path = log_files(crashed)[0]
    limits = ends(crashed)
    path.write_bytes(path.read_bytes()[: limits[3]])
    with pytest.raises(StorageError, match="newest files of the log"):
        open_store(crashed)
    store = open_store(crashed, options=replace(SMALL, recover=True))
    assert store.log_end == limits[-1]
    assert read_all(store, queue_id=0) == (["message 0", "message 2"], [2])
    send(store, "after")
    assert read_all(store, queue_id=0) == (["message 0", "message 2", "after"], [2])


def test_the_broker_gets_the_records_after_the_checkpoint(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store(tmp_path / "data")
    send(store, "before")
    store.checkpoint()
    send(store, "after 1", "after 2")
    crash(store)
    seen: list[bytes] = []
    store = Store(tmp_path / "data", SMALL)
    store.recover(lambda data, size: seen.extend(bodies_of(data, size)))
    assert seen == [b"after 1", b"after 2"]
    crash(store)


def test_deleting_every_index_loses_nothing(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store()
    for i in range(100):
        send(store, f"{i}", queue_id=i % 3)
    store.close()
    shutil.rmtree(tmp_path / "data" / "index")
    store = Store(tmp_path / "data", SMALL)
    seen: list[bytes] = []
    report = store.recover(lambda data, size: seen.extend(bodies_of(data, size)))
    assert (report.scanned, seen) == (100, [])
    assert read_all(store, queue_id=1)[0] == [f"{i}" for i in range(100) if i % 3 == 1]
    crash(store)


def test_a_clean_stop_needs_no_scan(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store()
    send(store, "a", "b")
    store.close()
    store = Store(tmp_path / "data", SMALL)
    report = store.recover()
    assert (report.clean, report.scanned) == (True, 0)
    assert read_all(store) == (["a", "b"], [])
    crash(store)


def test_a_record_inside_a_body_is_not_mistaken_for_a_record(tmp_path: Path, open_store: OpenStore) -> None:
    """The search after damage also sees bodies; only a record at its own position counts."""
    forged = encode_record(topic="t", body=b"forged", queue_id=0, queue_offset=1, position=0)
    store = open_store()
    send(store, "first")
    outer = store.append("t", 0, [NewRecord(forged)], store_time=1000).positions[0]
    send(store, "last")
    crash(store)
    path = log_files(tmp_path / "data")[0]
    data = bytearray(path.read_bytes())
    data[outer] ^= 0x40
    path.write_bytes(data)
    seen: list[bytes] = []
    store = Store(tmp_path / "data", SMALL)
    store.recover(lambda data, size: seen.extend(bodies_of(data, size)))
    assert seen == [b"first", b"last"]
    assert read_all(store) == (["first", "last"], [1])
    crash(store)
