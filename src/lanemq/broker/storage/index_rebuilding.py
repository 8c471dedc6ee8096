"""The rebuild of lost indexes beside the broker's work: one step of the log for each tick of the housekeeping."""

import logging

from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.log.index_rebuild import IndexRebuild
from lanemq.log.recovery import Piece
from lanemq.log.store import Store
from lanemq.model.errors import StorageError

log = logging.getLogger(__name__)

MAX_UNFILED_BYTES = 64 * 1024 * 1024
"""Bytes of rebuilt entries that wait for a checkpoint at most. Small: the rebuild waits for checkpoints. Large: more
memory."""


class IndexRebuilding:
    """Called at every tick. At most one step is in progress; the search thread reads, and the loop enters."""

    def __init__(self, store: Store, search_thread: DiskThread) -> None:
        self._store = store
        self._search_thread = search_thread
        self._reading = False

    def tick(self) -> None:
        rebuild = self._store.rebuild
        if rebuild is None or self._reading or rebuild.unfiled_bytes > MAX_UNFILED_BYTES:
            return
        self._reading = True

        def done(pieces: list[Piece] | None, error: StorageError | None) -> None:
            self._reading = False
            self._enter(rebuild, pieces, error)

        self._search_thread.submit(rebuild.read, done)

    def _enter(self, rebuild: IndexRebuild, pieces: list[Piece] | None, error: StorageError | None) -> None:
        if error is not None or pieces is None:
            log.error("indexes cannot be rebuilt, the next tick tries again: %s", error)
            return
        for place in self._store.enter_rebuilt(rebuild, pieces):
            log.error("the log is damaged at %s (%s bytes): %s", place.position, place.length, place.reason)
        if rebuild.done:
            log.info("the indexes are rebuilt: %s messages", rebuild.entered)
