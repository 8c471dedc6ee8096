"""Small logs on real files, and ways to damage them."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lanemq.log.appender import NewRecord
from lanemq.log.filesystem import Disk
from lanemq.log.options import StoreOptions
from lanemq.log.store import Store
from lanemq.wire.record import RecordView, record_starts

SMALL = StoreOptions(segment_bytes=4096)

OpenStore = Callable[..., Store]


def memory_folder() -> Path:
    """A new folder, in memory if possible: exhaustive tests sync thousands of times."""
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else None))


@pytest.fixture
def in_memory() -> Iterator[Path]:
    folder = memory_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    """Opens and recovers stores; those that a test leaves open end without a clean stop."""
    opened: list[Store] = []

    def open_one(folder: Path = tmp_path / "data", options: StoreOptions = SMALL, disk: Disk | None = None) -> Store:
        store = Store(folder, options, disk)
        opened.append(store)
        store.recover()
        return store

    yield open_one
    for store in opened:
        crash(store)


def crash(store: Store) -> None:
    """End a store as a killed process does: nothing more is written, and the lock is released."""
    if not store._lock.closed:
        store._files.close()
        store._log.close()
        if store._copy._path.parent.exists():
            store._copy.set_running(False)  # because closing the database removes its write-ahead log
        store.state.close()
        store._lock.close()


def message(text: str, tag_code: int = 0, properties: str = "") -> NewRecord:
    return NewRecord(text.encode(), properties.encode(), tag_code)


def send(store: Store, *texts: str, topic: str = "t", queue_id: int = 0, store_time: int = 1000) -> None:
    store.append(topic, queue_id, [message(text) for text in texts], store_time=store_time)


def bodies(data: bytes) -> list[str]:
    return [RecordView(data, start).body.decode() for start in record_starts(data)]


def read_all(store: Store, topic: str = "t", queue_id: int = 0) -> tuple[list[str], list[int]]:
    """Every readable body of a queue, and the offsets that are damaged."""
    offset, end = store.bounds(topic, queue_id)
    found: list[str] = []
    damaged: list[int] = []
    while offset < end:
        result = store.read(topic, queue_id, offset, 1000, 1 << 20)
        assert result.next_offset > offset
        found += bodies(result.data)
        damaged += result.damaged
        offset = result.next_offset
    return found, damaged


def log_files(folder: Path) -> list[Path]:
    return sorted((folder / "log").glob("*.log"))
