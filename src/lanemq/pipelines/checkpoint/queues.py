"""Which queues the state of a checkpoint belongs to.

Producers choose a message's queue by the number of queues, so if a topic gets more queues, keys move. Where state is
kept by queue, or queue offsets decide what is newer, a moved key would silently begin anew. So the pipeline ends before
it reads a message of the new queues, unless `on_queue_change` allows it.
"""

import logging
from typing import Final

import msgspec

from lanemq.files import StorePath, write_durably
from lanemq.model.errors import InvalidOption, OrderError
from lanemq.pipelines.checkpoint.fencing import Write, read_fenced_json
from lanemq.pipelines.ports import OnQueueChange
from lanemq.spark.offsets import Positions

log = logging.getLogger(__name__)

_CHOICES: Final = ("fail", "continue")


class _Queues(msgspec.Struct, frozen=True):
    topics: dict[str, list[str]]
    """By topic, `broker/number` of each queue."""


class QueueSet:
    """The known queues of one checkpoint."""

    def __init__(self, path: StorePath, on_change: OnQueueChange, write: Write = write_durably) -> None:
        self._path = path
        self._write = write
        self._on_change = on_change
        self._known: dict[str, list[str]] | None = None

    def check(self, positions: Positions) -> None:
        """`OrderError` if a known topic has new queues. New topics are accepted."""
        known, found = self._read(), _by_topic(positions)
        more = {
            topic: [name for name in names if name not in known[topic]]
            for topic, names in found.items()
            if topic in known
        }
        grown = {topic: names for topic, names in more.items() if names}
        if grown:
            self._warn_or_refuse(known, grown)
        if grown or not found.keys() <= known.keys():
            self._known = known | {topic: sorted({*names, *known.get(topic, ())}) for topic, names in found.items()}
            self._write(self._path, msgspec.json.encode(_Queues(self._known)))

    def _warn_or_refuse(self, known: dict[str, list[str]], grown: dict[str, list[str]]) -> None:
        topic, names = next(iter(sorted(grown.items())))
        what = (
            f"topic {topic} had {len(known[topic])} queues and now has {', '.join(names)} too (more queues, or a "
            f"broker that is new or was down): keys that moved there have no state"
        )
        if self._on_change == "continue":
            log.warning("%s; continuing because of on_queue_change='continue'", what)
            return
        raise OrderError(
            f"{what}. Remove the new queues again, or begin with an empty checkpoint and table; if no key has moved, "
            f"or a moved key may begin anew, set on_queue_change='continue'"
        )

    def _read(self) -> dict[str, list[str]]:
        if self._known is None:
            self._known = read_fenced_json(self._path, _Queues).topics if self._path.exists() else {}
        return self._known


def check_on_queue_change(value: str) -> OnQueueChange:
    """The value as an `OnQueueChange`, or `InvalidOption`."""
    if value not in _CHOICES:
        raise InvalidOption(f"on_queue_change={value!r}: use 'fail' or 'continue'")
    return value  # type: ignore[return-value]


def _by_topic(positions: Positions) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for queue in sorted(positions):
        found.setdefault(queue.topic, []).append(f"{queue.broker}/{queue.queue_id}")
    return found
