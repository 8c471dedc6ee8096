"""Held and parked keys of a pipeline, for Python programs; `lanemq pipeline parked` does the same.

    lanes = parked("/data/checkpoints/orders")
    for lane in lanes.waiting():
        print(lane.lane, lane.reason, len(lane.messages))
    lanes.redrive("order-42")

Works on the checkpoint's files, whether or not the pipeline runs, without Spark and without the broker.

Invariant: nothing here changes state. A request is written to the checkpoint; the running pipeline carries it out
within a second, or its next start does, so that it has its place in the order of batches.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from lanemq.model.errors import StateLost, UsageError
from lanemq.pipelines.checkpoint.checkpoint import need_identity, stage_folder
from lanemq.pipelines.pipeline import Pipeline
from lanemq.pipelines.stages.transitions import operator_requests, views
from lanemq.pipelines.stages.transitions.shard import WaitReason
from lanemq.pipelines.stages.transitions.views import HeldLane, LaneState

MAX_READS: Final = 5
"""A running pipeline removes old files while they are read, so one read may fail."""


class ParkedLanes:
    """The held and parked lanes of one pipeline; returned by `parked`."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self._stage = stage_folder(checkpoint)

    def waiting(self, *, held: bool = False) -> list[HeldLane]:
        """Lanes that wait for an operator or a missing message; `held`: also those that are retried automatically."""
        for _ in range(MAX_READS - 1):
            with suppress(StateLost):
                return views.list_parked(self._stage, held=held)
        return views.list_parked(self._stage, held=held)

    def show(self, key: str) -> LaneState:
        """The state of a key, and its waiting messages if it is held or parked."""
        found = views.show(self._stage, key)
        if not found:
            raise UsageError(
                f"key {key!r} is unknown: the pipeline has seen no message of it, or its state expired; check the name"
            )
        return found[0]

    def redrive(self, key: str | None = None, *, everything: bool = False) -> list[HeldLane]:
        """Request that waiting messages are tried again, in order, before newer ones. Returns the chosen lanes."""
        chosen = self.chosen(key, everything=everything)
        if chosen:
            operator_requests.request_redrive(self._stage, key, everything=everything)
        return chosen

    def discard(self, key: str | None = None, *, everything: bool = False, first_only: bool = False) -> list[HeldLane]:
        """Request that waiting messages become dead letters. Returns the chosen lanes.

        `first_only`: only the message that failed; the rest is tried again.
        """
        chosen = self.chosen(key, everything=everything)
        if chosen:
            operator_requests.request_discard(self._stage, key, everything=everything, first_only=first_only)
        return chosen

    def chosen(self, key: str | None = None, *, everything: bool = False) -> list[HeldLane]:
        """The lanes that a request would be about: one key, or all that are held or parked."""
        if (key is None) != everything:
            raise UsageError("give one key, or everything=True, but not both")
        found = [each for each in self.waiting(held=True) if everything or each.lane == key]
        if not found and not everything:
            raise UsageError(
                f"key {key!r} is neither held nor parked, so nothing was requested; `lanemq pipeline parked list "
                f"--held`, or waiting(held=True), lists those that are"
            )
        return found

    def requested(self) -> dict[str, str]:
        """Held and parked lanes with a pending request, and the latest request for each."""
        asked = sorted(operator_requests.pending_requests(self._stage), key=lambda each: each.asked)
        if not asked:
            return {}
        lanes = [each.lane for each in self.waiting(held=True)]
        return {lane: each.action for each in asked for lane in lanes if each.lane in (None, lane)}

    def counts(self) -> dict[str, int]:
        """The number of lanes by reason: `parked`, `held` or `gap`."""
        found = [each.why for each in self.waiting(held=True)]
        return {why.value: found.count(why) for why in sorted(WaitReason) if why in found}


def parked(pipeline: Pipeline | Path | str) -> ParkedLanes:
    """The held and parked keys of a pipeline, given the pipeline or its checkpoint's folder."""
    folder = pipeline.folder if isinstance(pipeline, Pipeline) else Path(pipeline).absolute()
    need_identity(folder)
    return ParkedLanes(folder)
