"""Topics on disk.

A new topic is usable immediately. The log thread saves its row before any message that was sent to it, so no
acknowledged message can outlive its topic. If the row cannot be saved, the broker stops writing for the same reason; on
a full disk, until it can.
"""

import logging
from collections.abc import Callable

import msgspec

from lanemq.broker.storage.group_commit import LogThread
from lanemq.clock import Clock
from lanemq.core.brokering.topic_table import (
    Changed,
    Created,
    Existing,
    Permission,
    Put,
    TopicConfig,
    TopicOrder,
    TopicRefused,
    TopicTable,
    WhyRefused,
)
from lanemq.log.state import State
from lanemq.model.errors import BrokerRefused, DiskFull, NoDescriptors, StorageError, TopicNotFound
from lanemq.wire.codes import ResponseCode

log = logging.getLogger(__name__)

OnFailure = Callable[[StorageError], None]
OnForgotten = Callable[[StorageError | None], None]


class TopicRows:
    """The rows of topics in `state.db`, those included that a full disk did not take yet. On the log thread only."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._late: dict[str, str] = {}
        """Topic → its settings, not on disk yet."""
        self._cut: int | None = None

    def save(self, name: str, settings: str) -> None:
        self._late[name] = settings
        try:
            self.state.save_topic(name, settings)
        except (DiskFull, NoDescriptors):
            raise  # `save_late` tries again before the next message is written
        except StorageError:
            del self._late[name]  # the broker stops writing
            raise
        del self._late[name]

    def delete(self, name: str) -> None:
        self._late.pop(name, None)
        self.state.delete_topic(name)

    def cut_dropped(self, end: int) -> None:
        """From the loop, while no message is being written. Takes effect with `save_late`."""
        self._cut = end if self._cut is None else min(end, self._cut)

    def save_late(self) -> None:
        if self._cut is not None:
            self.state.cut_dropped(self._cut)
            self._cut = None
        for name, settings in tuple(self._late.items()):
            self.save(name, settings)


class TopicKeeper:
    """Saves and deletes topics together with the table, in which handlers look them up."""

    def __init__(
        self,
        table: TopicTable,
        rows: TopicRows,
        thread: LogThread,
        on_failure: OnFailure,
        on_full: OnFailure,
        clock: Clock,
    ) -> None:
        """`on_full` is called if there is no space or no descriptor for a row, `on_failure` if it fails for good."""
        self._table = table
        self._clock = clock
        self._last_created = max((topic.created_ms for topic in table.topics()), default=0)
        """The newest time of creation. A new topic gets a later one, even if the clock was set back."""
        self.deletions = 0
        """The number of deletions; data copied before a deletion may contain the deleted topic."""
        self._rows = rows
        self._thread = thread
        self._on_failure = on_failure
        self._on_full = on_full

    def existing(self, name: str) -> TopicConfig:
        """The topic; raises `TopicNotFound` if there is none."""
        topic = self._table.get(name)
        if topic is None:
            raise TopicNotFound(ResponseCode.TOPIC_NOT_EXIST, f"topic {name} does not exist; create it first")
        return topic

    def take(self, outcome: Put) -> TopicConfig:
        """The topic of a table's outcome. Saves it if it is new or changed, raises if it was refused."""
        match outcome:
            case Created(topic) | Changed(_, topic):
                if isinstance(outcome, Created):
                    self._last_created = max(self._clock.wall(), self._last_created + 1)
                    topic = self._table.created_at(topic.name, self._last_created)
                log.info(
                    "topic %s: %s queues%s",
                    topic.name,
                    topic.write_queues,
                    ", ordered" if topic.ordered else "",
                )
                self._save(topic)
                return topic
            case Existing(topic):
                return topic
            case TopicRefused(name, why):
                raise _refusal(name, why)

    def delete(self, name: str) -> None:
        """Delete a topic from memory; `forget` deletes it from disk."""
        outcome = self._table.delete(name)
        if isinstance(outcome, TopicRefused):
            raise _refusal(name, outcome.why)
        self.deletions += 1

    def forget(self, name: str, delete_contents: Callable[[], None], done: OnForgotten) -> None:
        """Remove everything of a deleted topic from disk; called in the same loop step as `delete`.

        The topic's own row goes last: a crash in between leaves an empty topic, never a deleted one whose messages
        reappear in the next topic of that name.
        """

        def forget() -> None:
            delete_contents()
            self._rows.delete(name)

        def forgotten(_: object, error: StorageError | None) -> None:
            self._saved(None, error)
            done(error)

        self._thread.submit(forget, forgotten)

    def _save(self, topic: TopicConfig) -> None:
        settings = _encode(topic)
        self._thread.submit_rows(self._rows.state, lambda: self._rows.save(topic.name, settings), self._saved)

    def _saved(self, _: object, error: StorageError | None) -> None:
        if isinstance(error, (DiskFull, NoDescriptors)):
            self._on_full(error)
        elif error is not None:
            self._on_failure(error)


def _refusal(name: str, why: WhyRefused) -> BrokerRefused:
    remark = f"topic {name}: {why.value}"
    if why in (WhyRefused.NO_TEMPLATE, WhyRefused.UNKNOWN):
        return TopicNotFound(ResponseCode.TOPIC_NOT_EXIST, remark)
    return BrokerRefused(ResponseCode.INVALID_PARAMETER, remark)


def _encode(topic: TopicConfig) -> str:
    row = (*topic[:3], int(topic.permission), topic.order.value, topic.sys_flag, topic.created_ms)
    return msgspec.json.encode(row).decode()


def restored_topic(settings: str) -> TopicConfig:
    """The topic of a saved row. Rows of older brokers do not have the time of creation."""
    name, reads, writes, permission, order, sys_flag, *created = msgspec.json.decode(settings)
    return TopicConfig(name, reads, writes, Permission(permission), TopicOrder(order), sys_flag, *created)
