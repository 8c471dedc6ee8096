"""How the log behaves: checked once, when it is opened."""

from dataclasses import dataclass

from lanemq.model.errors import InvalidOption

_KIB, _MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """All sizes in bytes, all spans in milliseconds."""

    segment_bytes: int = 256 * _MIB
    """Size of a log file. Small files make retention finer, and cost a directory sync each."""

    durable: bool = True
    """True: nothing is acknowledged before `fdatasync`. False: a power cut may take the last moments."""

    relaxed_sync_ms: int = 500
    """Without `durable`: at most this long until written records are synced (RocketMQ's flushIntervalCommitLog)."""

    most_open_indexes: int = 256
    """Index files kept open for reading. Fewer costs an open per pull once more queues than this are read."""

    retention_ms: int = 72 * 3_600_000
    """Records are kept at least this long (RocketMQ's fileReservedTime); whole segments are deleted."""

    retention_bytes: int | None = None
    """The oldest segments go while the log is larger than this. None: no limit."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least {least}, not {value}"
            for name, value, least in (
                ("segment_bytes", self.segment_bytes, 4 * _KIB),
                ("relaxed_sync_ms", self.relaxed_sync_ms, 0),
                ("most_open_indexes", self.most_open_indexes, 1),
                ("retention_ms", self.retention_ms, 1),
                ("retention_bytes", self.retention_bytes, self.segment_bytes),
            )
            if value is not None and value < least
        ]
        if problems:
            raise InvalidOption("; ".join(problems))
