"""Which queues the state of a checkpoint belongs to.

Producers choose a message's queue by the number of queues, so if a topic gets more queues, or is created again with
fewer, keys move. Where state is kept by queue, or queue offsets decide what is newer, a moved key would silently begin
anew. So the pipeline ends before it reads a message of the changed topic, unless `on_queue_change` allows it.
"""

import logging
from typing import Final

import msgspec

from lanemq.model.errors import InvalidOption, OrderError
from lanemq.pipelines.checkpoint.run_log import RunLog
from lanemq.pipelines.ports import OnQueueChange
from lanemq.spark.offsets import Positions

log = logging.getLogger(__name__)

_CHOICES: Final = ("fail", "continue")
_QUEUES: Final = "queues"
"""The record's name in the run log."""


class _Queues(msgspec.Struct, frozen=True):
    topics: dict[str, list[str]]
    """By topic, `broker/number` of each queue."""


class QueueSet:
    """The known queues of one checkpoint."""

    def __init__(self, log: RunLog, on_change: OnQueueChange) -> None:
        self._log = log
        self._on_change = on_change

    def check(self, positions: Positions) -> None:
        """`OrderError` if a known topic has other queues. New topics are accepted, and topics that are gone."""
        recorded = self._log.records.get(_QUEUES)
        known = {} if recorded is None else msgspec.json.decode(recorded, type=_Queues).topics
        found = _by_topic(positions)
        changed = [topic for topic, names in found.items() if {*names} != {*known.get(topic, ())}]
        for topic in changed:
            if topic in known:
                self._warn_or_refuse(topic, known[topic], found[topic])
        if changed:
            self._log.record(_QUEUES, msgspec.json.encode(_Queues(known | found)))

    def _warn_or_refuse(self, topic: str, before: list[str], now: list[str]) -> None:
        more, gone = [name for name in now if name not in before], [name for name in before if name not in now]
        changes = [
            f"now has {', '.join(more)} too (more queues, or a broker that is new or was down)" if more else "",
            f"{', '.join(gone)} is gone (it was created again with fewer queues, or a broker is down)" if gone else "",
        ]
        what = (
            f"topic {topic} had {len(before)} queues and {' and '.join(filter(None, changes))}: keys that moved have "
            f"no state where they are now"
        )
        if self._on_change == "continue":
            log.warning("%s; continuing because of on_queue_change='continue'", what)
            return
        raise OrderError(
            f"{what}. Give the topic its former queues again, or begin with an empty checkpoint and table; if no key "
            f"has moved, or a moved key may begin anew, set on_queue_change='continue'"
        )


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
