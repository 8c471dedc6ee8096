"""Keys of a pipeline that stand still: seen and decided about from Python, as `lanemq pipeline parked` does.

    lanes = parked("/data/checkpoints/orders")
    for lane in lanes.waiting():
        print(lane.lane, lane.reason, len(lane.messages))
    lanes.redrive("order-42")

Works on the checkpoint's files, whether the pipeline runs or not, without Spark and without the broker. The rule
guarded here: nothing is changed here. A decision is written down, and carried out by the running pipeline within a
second, or by its next start, so that it takes its place in the order of batches.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from lanemq.model.errors import StateLost, UsageError
from lanemq.pipelines.checkpoint.checkpoint import identity_of, stage_place
from lanemq.pipelines.pipeline import Pipeline
from lanemq.pipelines.stages.transitions import operator_requests, views
from lanemq.pipelines.stages.transitions.lane import Why
from lanemq.pipelines.stages.transitions.views import HeldLane, LaneState

LOOKS: Final = 5
"""A running pipeline removes old files while they are read, so that one look may fail."""


class ParkedLanes:
    """The lanes of one pipeline that stand still; what `parked` returns."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self._stage = stage_place(checkpoint)

    def waiting(self, *, held: bool = False) -> list[HeldLane]:
        """Lanes that wait for a person or for a missing message; `held`: also those that are tried by themselves."""
        for _ in range(LOOKS - 1):
            with suppress(StateLost):
                return views.list_parked(self._stage, held=held)
        return views.list_parked(self._stage, held=held)

    def show(self, key: str) -> LaneState:
        """A key's state, and the messages that wait in it if it stands still."""
        found = views.show(self._stage, key)
        if not found:
            raise UsageError(f"key {key!r} is not known here: no message of it was seen, or it was forgotten")
        return found[0]

    def redrive(self, key: str | None = None, *, everything: bool = False) -> list[HeldLane]:
        """Tries a key's messages again, in order, before newer ones. Gives the lanes that were chosen."""
        chosen = self.chosen(key, everything=everything)
        if chosen:
            operator_requests.request_redrive(self._stage, key, everything=everything)
        return chosen

    def discard(self, key: str | None = None, *, everything: bool = False, first_only: bool = False) -> list[HeldLane]:
        """Makes waiting messages dead letters; `first_only`: only the one that failed, the rest is tried again."""
        chosen = self.chosen(key, everything=everything)
        if chosen:
            operator_requests.request_discard(self._stage, key, everything=everything, first_only=first_only)
        return chosen

    def chosen(self, key: str | None = None, *, everything: bool = False) -> list[HeldLane]:
        """What a decision would be about: one key, or all that stand still."""
        if (key is None) != everything:
            raise UsageError("name one key, or say everything=True, and not both")
        found = [each for each in self.waiting(held=True) if everything or each.lane == key]
        if not found and not everything:
            raise UsageError(
                f"key {key!r} does not stand still: nothing was asked; `lanemq pipeline parked list --held`, or "
                f"waiting(held=True), has those that do"
            )
        return found

    def decided(self) -> dict[str, str]:
        """Lanes that stand still and are decided about, and how; no pass has carried it out yet.

        A later decision about a lane follows the earlier one, so the latest is told.
        """
        asked = sorted(operator_requests.pending_requests(self._stage), key=lambda each: each.asked)
        if not asked:
            return {}
        still = [each.lane for each in self.waiting(held=True)]
        return {lane: each.action for each in asked for lane in still if each.lane in (None, lane)}

    def counts(self) -> dict[str, int]:
        """How many lanes stand still, by reason: `parked`, `held` or `gap`."""
        found = [each.why for each in self.waiting(held=True)]
        return {why.value: found.count(why) for why in sorted(Why) if why in found}


def parked(pipeline: Pipeline | Path | str) -> ParkedLanes:
    """The keys of a pipeline that stand still; takes the pipeline or its checkpoint's folder."""
    folder = pipeline.folder if isinstance(pipeline, Pipeline) else Path(pipeline).absolute()
    if identity_of(folder) is None:
        raise UsageError(f"{folder} is no checkpoint of a pipeline: it was never started, or the folder is another one")
    return ParkedLanes(folder)
