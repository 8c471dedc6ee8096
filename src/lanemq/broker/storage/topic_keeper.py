"""Topics on disk.

A new topic is usable immediately. The log thread saves its row before any message that was sent to it, so no
acknowledged message can outlive its topic. If the row cannot be saved, the broker stops writing for the same reason.
"""

import logging
from collections.abc import Callable

import msgspec

from lanemq.broker.storage.group_commit import LogThread
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
from lanemq.model.errors import BrokerRefused, StorageError, TopicNotFound
from lanemq.wire.codes import ResponseCode

log = logging.getLogger(__name__)

OnFailure = Callable[[StorageError], None]
OnForgotten = Callable[[StorageError | None], None]


class TopicKeeper:
    """Saves and deletes topics together with the table, in which handlers look them up."""

    def __init__(self, table: TopicTable, state: State, thread: LogThread, on_failure: OnFailure) -> None:
        self._table = table
        self.deletions = 0
        """The number of deletions; data copied before a deletion may contain the deleted topic."""
        self._state = state
        self._thread = thread
        self._on_failure = on_failure

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
            self._state.delete_topic(name)

        def forgotten(_: object, error: StorageError | None) -> None:
            self._saved(None, error)
            done(error)

        self._thread.submit(forget, forgotten)

    def _save(self, topic: TopicConfig) -> None:
        settings = _encode(topic)
        self._thread.submit(lambda: self._state.save_topic(topic.name, settings), self._saved)

    def _saved(self, _: object, error: StorageError | None) -> None:
        if error is not None:
            self._on_failure(error)


def _refusal(name: str, why: WhyRefused) -> BrokerRefused:
    remark = f"topic {name}: {why.value}"
    if why in (WhyRefused.NO_TEMPLATE, WhyRefused.UNKNOWN):
        return TopicNotFound(ResponseCode.TOPIC_NOT_EXIST, remark)
    return BrokerRefused(ResponseCode.INVALID_PARAMETER, remark)


def _encode(topic: TopicConfig) -> str:
    row = (*topic[:3], int(topic.permission), topic.order.value, topic.sys_flag)
    return msgspec.json.encode(row).decode()


def restored_topic(settings: str) -> TopicConfig:
    """The topic of a saved row."""
    name, reads, writes, permission, order, sys_flag = msgspec.json.decode(settings)
    return TopicConfig(name, reads, writes, Permission(permission), TopicOrder(order), sys_flag)
