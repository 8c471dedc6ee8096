"""Topics on disk.

A new topic is usable immediately. Its row is saved before any message that was sent to it, so no acknowledged message
can outlive its topic. If the row cannot be saved, the broker stops writing for the same reason; on a full disk, until
it can. Messages of other topics do not wait for the row.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from lanemq.broker.storage.disk_thread import DiskThread
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
from lanemq.log.queue_index import QueueIndex
from lanemq.log.state.database import State
from lanemq.model.errors import BrokerRefused, DiskFull, NoDescriptors, StorageError, TopicNotFound
from lanemq.model.names import SCHEDULE_TOPIC
from lanemq.wire.codes import ResponseCode

log = logging.getLogger(__name__)

OnFailure = Callable[[StorageError], None]
OnWritten = Callable[[StorageError | None], None]


class TopicRows:
    """The rows of topics in `state.db`, and which messages have to wait for them.

    The row thread runs its jobs in the order of the decisions. So a job that is behind all others (`save_first`) is
    done when every row decided before it is on disk, or has failed.
    """

    def __init__(self, state: State, thread: DiskThread) -> None:
        self._state = state
        self._thread = thread
        # On the loop.
        self._unsaved: dict[str, int] = {}
        """Topic → how many changes of its row are not on disk yet."""
        self._waiting: dict[str, list[OnWritten]] = {}
        """Topic → what to call once its row is on disk."""
        self._left = False
        """Whether there may be rows in `_late`."""
        self._cut: int | None = None
        self._undeleted: dict[str, None] = {}
        """Deleted topics that are still on disk: their deletion is under way, or met a full disk."""
        # On the row thread.
        self._to_delete: dict[str, Callable[[], None]] = {}
        """Deleted topic → what deletes its contents."""
        self._late: dict[str, str] = {}
        """Topic → its settings, which a full disk did not take yet."""

    def save(self, name: str, settings: str, done: OnWritten) -> None:
        self._unsaved[name] = self._unsaved.get(name, 0) + 1

        def saved(_: object, error: StorageError | None) -> None:
            self._unsaved[name] -= 1
            last = not self._unsaved[name]
            if last:
                del self._unsaved[name]
            self._left = self._left or isinstance(error, (DiskFull, NoDescriptors))
            done(error)
            for each in self._waiting.pop(name, ()) if last else ():
                each(error)

        def save() -> None:
            self._delete(name)  # the earlier topic of that name
            self._save(name, settings)

        if name in self._undeleted:
            self._thread.submit(save, saved)
        else:
            self._thread.submit_rows(self._state, lambda: self._save(name, settings), saved)

    def forget(self, name: str, delete_contents: Callable[[], None], done: OnWritten) -> None:
        """Delete the row of a topic, and before it its contents; what a full disk does not take can be repeated."""

        def forget() -> None:
            self._to_delete[name] = delete_contents
            self._delete(name)

        self._undeleted[name] = None
        self._thread.submit(forget, partial(self._forgotten, name, done))

    def _delete(self, name: str) -> None:
        """On the row thread: delete what is left of a deleted topic."""
        delete_contents = self._to_delete.get(name)
        if delete_contents is not None:
            delete_contents()
            self._late.pop(name, None)
            self._state.delete_topic(name)
            del self._to_delete[name]

    def _forgotten(self, name: str, done: OnWritten, _: object, error: StorageError | None) -> None:
        if not isinstance(error, (DiskFull, NoDescriptors)):
            self._undeleted.pop(name, None)
        done(error)

    @property
    def unfinished_deletions(self) -> tuple[str, ...]:
        """Deleted topics that are still on disk."""
        return tuple(self._undeleted)

    def repeat_deletion(self, name: str, done: OnWritten) -> bool:
        """Delete a topic again that a full disk has kept; False if there is none of that name."""
        if name not in self._undeleted:
            return False
        self._thread.submit(lambda: self._delete(name), partial(self._forgotten, name, done))
        return True

    def needed_by(self, queues: Iterable[QueueIndex]) -> bool:
        if self._left or self._cut is not None:
            return True
        # A delayed message is stored under another name than that of its topic.
        return bool(self._unsaved) and any(
            queue.topic in self._unsaved or queue.topic == SCHEDULE_TOPIC for queue in queues
        )

    def when_saved(self, name: str, done: OnWritten) -> None:
        """Call `done` once the row of a topic is on disk, immediately if it is."""
        if name in self._unsaved:
            self._waiting.setdefault(name, []).append(done)
        elif self._left:
            self.save_first(done)
        else:
            done(None)

    def save_first(self, done: OnWritten) -> None:
        cut = self._cut

        def save() -> None:
            if cut is not None:
                self._state.cut_dropped(cut)
            for name, settings in tuple(self._late.items()):
                self._save(name, settings)

        def saved(_: object, error: StorageError | None) -> None:
            if error is None:
                self._left = False
                if self._cut == cut:
                    self._cut = None
            done(error)

        self._thread.submit(save, saved, urgent=True)

    def cut_dropped(self, end: int) -> None:
        self._cut = end if self._cut is None else min(end, self._cut)

    def _save(self, name: str, settings: str) -> None:
        self._late[name] = settings
        try:
            self._state.save_topic(name, settings)
        except (DiskFull, NoDescriptors):
            raise  # `save_first` tries again before the next message is written
        except StorageError:
            del self._late[name]  # the broker stops writing
            raise
        del self._late[name]


class TopicKeeper:
    """Saves and deletes topics together with the table, in which handlers look them up."""

    def __init__(
        self,
        table: TopicTable,
        rows: TopicRows,
        on_failure: OnFailure,
        on_full: OnFailure,
        clock: Clock,
    ) -> None:
        """`on_full` is called if there is no space or no descriptor for a row, `on_failure` if it fails for good."""
        self._table = table
        self._clock = clock
        self._last_created = max((topic.created_ms for topic in table.topics()), default=0)
        """The newest time of creation. A new topic gets a later one, even if the clock was set back."""
        self._rows = rows
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

    def forget(self, name: str, delete_contents: Callable[[], None], done: OnWritten) -> None:
        """Remove everything of a deleted topic from disk; called in the same loop step as `delete`.

        The topic's own row goes last: a crash in between leaves an empty topic, never a deleted one whose messages
        reappear in the next topic of that name.
        """

        def forgotten(error: StorageError | None) -> None:
            self._saved(error)
            done(error)

        self._rows.forget(name, delete_contents, forgotten)

    @property
    def unfinished_deletions(self) -> tuple[str, ...]:
        """Deleted topics that are still on disk."""
        return self._rows.unfinished_deletions

    def repeat_deletion(self, name: str, done: OnWritten) -> bool:
        """Delete a topic from disk again, after a deletion that met a full disk; False if there was none."""
        return self._rows.repeat_deletion(name, done)

    def when_saved(self, name: str, done: OnWritten) -> None:
        """Call `done` once a topic is on disk, immediately if it is."""
        self._rows.when_saved(name, done)

    def _save(self, topic: TopicConfig) -> None:
        self._rows.save(topic.name, _encode(topic), self._saved)

    def _saved(self, error: StorageError | None) -> None:
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
    name, reads, writes, permission, order, sys_flag, created_ms = msgspec.json.decode(settings)
    return TopicConfig(name, reads, writes, Permission(permission), TopicOrder(order), sys_flag, created_ms)
