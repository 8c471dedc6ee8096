"""The fast scan for keys finds what decoding every record finds."""

import os
from pathlib import Path
from sys import byteorder

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fast.both import references
from tests.faulty_disk import FaultyDisk
from tests.log.conftest import OpenStore, crash, send
from tests.wire.encoding import encode_record

from lanemq.log import key_index
from lanemq.log.appender import NewRecord
from lanemq.log.key_index import key_hash, keys_of
from lanemq.log.options import StoreOptions
from lanemq.log.store import Store
from lanemq.model.errors import DiskFull

NAMES = st.sampled_from(["__SHARDINGKEY", "UNIQ_KEY", "KEYS", "XKEYS", "X__SHARDINGKEY", "WAIT", "LANE_STAMP", ""])
VALUES = st.sampled_from(["", "a", "b", "a b", "ключ", "UNIQ_KEY", "KEYS", "a\x01b"])
USUAL = st.sampled_from(
    ["__SHARDINGKEY\x01k\x02UNIQ_KEY\x01id\x02", "UNIQ_KEY\x01id\x02", "__SHARDINGKEY\x01id\x02UNIQ_KEY\x01id\x02"]
)
REST = st.lists(st.tuples(NAMES, VALUES), max_size=4).map(lambda e: "".join(f"{n}\x01{v}\x02" for n, v in e))
TEXTS = st.tuples(USUAL | st.just(""), REST).map("".join)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(["T", "U", "Тема"]), st.binary(max_size=8), TEXTS), max_size=4))
def test_every_key_is_found_as_if_each_record_were_decoded(messages: list[tuple[str, bytes, str]]) -> None:
    """The last property of a name counts, and text that only looks like a name does not."""
    log, hashes, positions = b"", b"", b""
    for topic, body, text in messages:
        at = 100 + len(log)
        for key in keys_of(text):
            hashes += key_hash(topic, key).to_bytes(4, "big")
            positions += at.to_bytes(8, byteorder)
        log += encode_record(topic=topic, body=body, properties_text=text, queue_id=0, queue_offset=0, position=at)
    assert references["scan_keys"](log, 100) == (hashes, positions, len(log))


def keyed(store: Store, *keys: str) -> None:
    store.append("t", 0, [NewRecord(b"x", f"KEYS\x01{key}\x02".encode()) for key in keys], store_time=1)


def found(store: Store, key: str) -> int:
    return len(store.query("t", key, 10, 0, 2**60))


def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions from which keys are read from the log, from now on."""
    positions: list[int] = []
    scan_keys = key_index.scan_keys

    def noted(buffer: bytes, position: int) -> tuple[bytes, bytes, int]:
        positions.append(position)
        return scan_keys(buffer, position)

    monkeypatch.setattr(key_index, "scan_keys", noted)
    return positions


def test_the_index_of_the_newest_segment_survives_a_restart(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    keyed(store, "a", "b")
    assert found(store, "a") == 1
    end = store.log_end
    store.close()
    store = open_store()
    positions = scanned(monkeypatch)
    keyed(store, "a")
    assert found(store, "a") == 2
    assert positions == [end], "the old part of the log is not read again"


def test_an_index_that_covers_more_than_the_log_is_not_used(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut took records that it covers; others take their positions, and must be found."""
    monkeypatch.setattr(key_index, "SAVE_EVERY_BYTES", 1)
    store = open_store()
    keyed(store, "a")
    end = store.log_end
    keyed(store, "b", "b")
    assert found(store, "b") == 2
    crash(store)
    os.truncate(next((tmp_path / "data" / "log").glob("*.log")), end)
    store = open_store()
    keyed(store, "c", "d")
    assert [found(store, key) for key in "abcd"] == [1, 0, 1, 1]


def test_a_search_sees_no_record_before_it_is_visible(open_store: OpenStore) -> None:
    """What is written and not visible may still be undone."""
    store = open_store()
    keyed(store, "a")
    store.appender.stage("t", 0, [NewRecord(b"x", b"KEYS\x01b\x02")], store_time=1)
    pending = store.appender.take_pending()
    store.appender.flush(pending)
    assert found(store, "b") == 0
    store.appender.publish(pending)
    assert found(store, "b") == 1


def test_a_full_disk_is_named_and_leaves_no_draft(open_store: OpenStore, tmp_path: Path) -> None:
    """The broker's log then has a line instead of a traceback, and the next attempt writes the index."""
    disk = FaultyDisk()
    store = open_store(disk=disk, options=StoreOptions(segment_bytes=4096))
    send(store, *["x" * 400] * 20)
    disk.space = 0
    with pytest.raises(DiskFull, match=r"keys cannot be written: .*No space left"):
        store.index_keys(1 << 20)
    assert not list((tmp_path / "data" / "keys").glob("*.draft"))
    disk.space = None
    store.index_keys(1 << 20)
    assert list((tmp_path / "data" / "keys").glob("*.keys"))
