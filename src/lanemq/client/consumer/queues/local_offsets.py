"""Offsets that a member stores itself: in broadcasting each member keeps its own, in a file or in memory."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from lanemq.client.consumer.options import ConsumerOptions
from lanemq.model.errors import StorageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset


class LocalOffsets(Protocol):
    """Offsets that a member stores itself."""

    def load(self) -> dict[MessageQueue, QueueOffset]: ...

    def save(self, offsets: Mapping[MessageQueue, QueueOffset]) -> None: ...


def local_offsets(options: ConsumerOptions) -> LocalOffsets:
    folder = options.offsets_folder
    return MemoryOffsets() if folder is None else FileOffsets(folder, options.group)


class MemoryOffsets:
    """Offsets that end with the process."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, QueueOffset] = {}

    def load(self) -> dict[MessageQueue, QueueOffset]:
        return dict(self._offsets)

    def save(self, offsets: Mapping[MessageQueue, QueueOffset]) -> None:
        self._offsets.update(offsets)


class _Entry(msgspec.Struct):
    topic: str
    broker: str
    queue_id: int
    offset: int


_decode_entries = msgspec.json.Decoder(list[_Entry]).decode


class FileOffsets:
    """Offsets in one JSON file per group. Saving replaces the whole file, so a crash leaves the old or the new one."""

    def __init__(self, folder: Path, group: str) -> None:
        self._path = folder / f"{group.replace('%', '_').replace('|', '_')}.offsets.json"

    def load(self) -> dict[MessageQueue, QueueOffset]:
        """The offsets that were saved last. A file that cannot be read is an error, not a new start."""
        try:
            entries = _decode_entries(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StorageError(
                f"offsets in {self._path} cannot be read: {error}; move the file away to start anew"
            ) from error
        return {MessageQueue(each.topic, each.broker, each.queue_id): QueueOffset(each.offset) for each in entries}

    def save(self, offsets: Mapping[MessageQueue, QueueOffset]) -> None:
        whole = self.load() | dict(offsets)
        entries = [_Entry(*queue, offset) for queue, offset in sorted(whole.items())]
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("wb") as file:
                file.write(msgspec.json.encode(entries))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError as error:
            raise StorageError(f"offsets cannot be saved to {self._path}: {error}") from error
