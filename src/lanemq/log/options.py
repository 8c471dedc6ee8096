"""Options of the log, checked when they are made."""

from dataclasses import dataclass

from lanemq.model.errors import InvalidOption

_KIB, _MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of one data folder: sizes in bytes, durations in milliseconds."""

    segment_bytes: int = 256 * _MIB
    """Size of one log file. Small: retention is finer, and each file costs a directory sync. Large: the reverse."""

    durable: bool = True
    """Whether `flush` returns only after `fdatasync`. False: a power cut may lose the last records."""

    relaxed_sync_ms: int = 500
    """Time until written records are synced at the latest without `durable` (RocketMQ's flushIntervalCommitLog)."""

    max_open_indexes: int = 256
    """Index files kept open for reading. Fewer: one `open` per pull once more queues than this are read."""

    retention_ms: int = 72 * 3_600_000
    """Time that records are kept at least (RocketMQ's fileReservedTime); whole segments are deleted."""

    retention_bytes: int | None = None
    """Log size above which the oldest segments are deleted. None: no limit."""

    recover: bool = False
    """Whether a lost `state.db` is rebuilt as far as possible; otherwise the store does not open."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least {least}, not {value}"
            for name, value, least in (
                ("segment_bytes", self.segment_bytes, 4 * _KIB),
                ("relaxed_sync_ms", self.relaxed_sync_ms, 0),
                ("max_open_indexes", self.max_open_indexes, 1),
                ("retention_ms", self.retention_ms, 1),
                ("retention_bytes", self.retention_bytes, self.segment_bytes),
            )
            if value is not None and value < least
        ]
        if problems:
            raise InvalidOption("; ".join(problems))
