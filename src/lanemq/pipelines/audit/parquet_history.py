"""A history that goes straight into Parquet, for writers with many events at a time, such as a pipeline's sink.

A Parquet file can only be read when it is complete, so the promise is smaller than that of the lines: what was
recorded since the last `flush` dies with the process. Flush wherever the thing recorded becomes final, once a batch.
Each flush is a file of its own, complete when it appears; together they are one history.
"""

import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from lanemq.checker.parquet_writing import table
from lanemq.history import NO_HISTORY, History, Role, file_name

MOST_ROWS = 64 * 1024
"""Rows kept in memory at most: more of them are flushed unasked."""


class ParquetHistory(History):
    """As `History`, but `folder` becomes a folder of Parquet files."""

    def __init__(
        self, folder: Path, process: str, now_ns: Callable[[], int], role: Role = "other", run: str = ""
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.now = now_ns
        self._n = 0
        self._lock = Lock()
        self._folder: Path | None = folder
        self._rows: list[dict[str, Any]] = []
        self._write("begin", {"name": process, "role": role, "run": run})

    def flush(self) -> None:
        """What was recorded so far survives a kill of the process; a power cut as well."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        with self._lock:
            self._flush()
            self._folder = None

    def _write(self, event: str, fields: dict[str, str | int]) -> None:
        with self._lock:
            if self._folder is None:
                return
            self._rows.append({"e": event, "n": self._n, "t": self.now(), **fields})
            self._n += 1
            if len(self._rows) >= MOST_ROWS:
                self._flush()

    def _flush(self) -> None:
        """Parts are named after their first event, so that their names are in the order of the events."""
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
    folder: Path | None, process: str, now_ns: Callable[[], int], role: Role = "other", run: str = ""
) -> History:
    """As `open_history`: a history of its own for this process, or nothing at all without a folder."""
    if folder is None:
        return NO_HISTORY
    return ParquetHistory(folder / f"{file_name(process)}.parquet", process, now_ns, role, run)
