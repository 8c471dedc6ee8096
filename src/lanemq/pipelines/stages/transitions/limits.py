"""How much state transitions may keep, and for how long; every bound is an option with a name."""

from dataclasses import dataclass
from typing import Literal

from lanemq.model.errors import InvalidOption
from lanemq.model.units import to_millis


@dataclass(frozen=True, slots=True)
class StateLimits:
    """Bounds of one stage. What exceeds one is an error that names it, or is forgotten by rule, never by chance."""

    max_keys_per_shard: int = 5_000_000
    """A shard is in the memory of one worker, at about 200 bytes a key beside its state. Too low: a growing key space
    stops the pipeline; too high: the worker is killed for its memory instead."""
    max_bytes_per_shard: int = 2 * 1024**3
    """States of a shard, with what waits in stopped lanes. Too low: states that grow stop the pipeline; too high: the
    worker is killed for its memory instead."""
    expire_after: float | None = None
    """Seconds without a message after which a key's state is forgotten, by the store times that its shard has seen.
    None: never. Too short: a key that comes back starts with no state."""
    forget_numbers_after: float | None = None
    """With `sequence=`, the number of a key that has no state any more stays for this long, at about 200 bytes. None:
    for ever. Too short: a key that comes back begins at `first_number` again, so its events count as gaps, or wait
    with `on_gap="hold"`, and its old repeats pass."""
    max_waiting_per_lane: int = 10_000
    """Messages behind a stopped key. They are part of the state: long lanes make every batch write more."""
    max_waiting_bytes_per_lane: int = 64 * 1024**2
    """The same in bytes of their bodies: ten thousand messages may be ten thousand of 4 MB."""
    when_lane_is_full: Literal["stop", "dead_letter"] = "stop"
    """`stop` fails the batch and loses nothing; `dead_letter` keeps the others going and gives up this key's order."""
    producers_per_shard: int = 1_024
    """Producers whose stamps are remembered, the longest silent forgotten first; repeats of forgotten ones pass."""
    cache_keys_per_worker: int = 4_000_000
    """Keys that a worker keeps in memory between batches. Too low: state is read from files in every batch."""
    cache_bytes_per_worker: int = 2 * 1024**3
    """The same in bytes of their states."""
    snapshot_every: int = 64
    """Change files of a shard between two snapshots, at most. Few: much is written; many: a restart reads more."""

    def __post_init__(self) -> None:
        for name in (
            "max_keys_per_shard",
            "max_bytes_per_shard",
            "max_waiting_per_lane",
            "max_waiting_bytes_per_lane",
            "producers_per_shard",
            "cache_keys_per_worker",
            "cache_bytes_per_worker",
            "snapshot_every",
        ):
            if getattr(self, name) < 1:
                raise InvalidOption(f"StateLimits({name}={getattr(self, name)}) leaves room for nothing: use 1 or more")
        shortest = 0.001
        if self.expire_after is not None and self.expire_after < shortest:
            raise InvalidOption(
                f"StateLimits(expire_after={self.expire_after}): use {shortest} seconds or more, None for never"
            )
        if self.forget_numbers_after is not None and self.forget_numbers_after < (self.expire_after or shortest):
            raise InvalidOption(
                f"StateLimits(forget_numbers_after={self.forget_numbers_after}): use {self.expire_after or shortest} "
                f"seconds or more (a number goes with the state or after it), None for never"
            )
        if self.when_lane_is_full not in ("stop", "dead_letter"):
            raise InvalidOption(
                f"StateLimits(when_lane_is_full={self.when_lane_is_full!r}): use 'stop' or 'dead_letter'"
            )

    @property
    def expire_after_ms(self) -> int | None:
        """`expire_after` in milliseconds, as store times are."""
        return None if self.expire_after is None else to_millis(self.expire_after)

    @property
    def forget_numbers_after_ms(self) -> int | None:
        """`forget_numbers_after` in milliseconds, as store times are."""
        return None if self.forget_numbers_after is None else to_millis(self.forget_numbers_after)
