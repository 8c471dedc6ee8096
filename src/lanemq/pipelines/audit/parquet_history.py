"""A history that is written as Parquet, for programs that record many events at a time, such as a pipeline's sink.

A Parquet file can only be read when it is complete, so this keeps less than a history of lines: what was recorded since
the last `flush` is lost with the process. Call `flush` wherever the recorded effect becomes final, once per batch. Each
flush makes one file, complete when it appears; together they are one history.
"""

import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, Unpack

from lanemq.checker.parquet_writing import table
from lanemq.history import NO_HISTORY, AboutWriter, History, file_name

MAX_ROWS = 64 * 1024
"""Rows kept in memory; with more, the history is flushed."""


class ParquetHistory(History):
    """A `History` that writes Parquet files to `folder`."""

    def __init__(self, folder: Path, process: str, now_ns: Callable[[], int], **about: Unpack[AboutWriter]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.now = now_ns
        self._n = 0
        self._lock = Lock()
        self._folder: Path | None = folder
        self._rows: list[dict[str, Any]] = []
        self._begin(process, **about)

    def flush(self) -> None:
        """Writes what was recorded so far to disk; it then survives a kill and a power cut."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Flushes; later events are not recorded."""
        with self._lock:
            self._flush()
            self._folder = None

    def _write(self, event: str, fields: dict[str, str | int]) -> None:
        with self._lock:
            if self._folder is None:
                return
            self._rows.append({"e": event, "n": self._n, "t": self.now(), **fields})
            self._n += 1
            if len(self._rows) >= MAX_ROWS:
                self._flush()

    def _flush(self) -> None:
        """Writes a file, named after its first event, so that names are in the order of events."""
        if self._folder is None or not self._rows:
            return
        from pyarrow import parquet

        first = self._rows[0]
        part = self._folder / f"{first['t']:020}-{first['n']:012}.parquet"
        unfinished = part.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            parquet.write_table(table(self._rows), file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(part)
        self._rows = []


def open_parquet_history(
    folder: Path | None, process: str, now_ns: Callable[[], int], **about: Unpack[AboutWriter]
) -> History:
    """A Parquet history for this process; records nothing without a folder. Otherwise like `open_history`."""
    if folder is None:
        return NO_HISTORY
    return ParquetHistory(folder / f"{file_name(process)}.parquet", process, now_ns, **about)
