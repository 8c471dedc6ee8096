"""Dead letters of consumer groups: messages that a group gave up, in its topic `%DLQ%<group>`.

A dead letter stays where it is when it is redriven. The copy that is sent to its topic carries the dead letter's id
among its search keys, so that a second redrive finds it.

A log cannot delete single messages, so discarding moves an offset: everything below it is discarded. It is the offset
of a group that has the name of the dead-letter topic and never has members. Apache brokers keep it like any other.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, Protocol

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.topic_reader import TopicReader
from lanemq.client.admin.views import AtOffset, TopicDescription
from lanemq.client.message import Message
from lanemq.model.errors import TopicNotFound, UsageError
from lanemq.model.names import DEAD_LETTER_PREFIX, check_group, dead_letter_topic
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.wire.properties import LANE_ORIGIN, LANE_PLACE, LANE_STAMP, LANE_WHY, REDRIVEN, PropertyName

_SYSTEM = frozenset(
    {name for name in vars(PropertyName).values() if isinstance(name, str) and name.isupper()}
    | {LANE_ORIGIN, LANE_PLACE, LANE_STAMP, LANE_WHY}
)
"""Properties that are set anew when a message is sent."""


@dataclass(frozen=True, slots=True)
class GroupDeadLetter:
    """One message that a group gave up."""

    group: str
    message: Message
    redriven: bool = False
    """Whether a copy was sent; known after `with_states`."""

    @property
    def state(self) -> Literal["open", "redriven"]:
        return "redriven" if self.redriven else "open"

    @property
    def key(self) -> str | None:
        return self.message.key

    @property
    def id(self) -> str:
        """Broker, queue and offset in the group's dead letters."""
        queue = self.message.queue
        return f"{queue.broker}/{queue.queue_id}/{self.message.queue_offset}"

    @property
    def topic(self) -> str:
        """The topic that the message was sent to."""
        return self.message.properties.get(PropertyName.RETRY_TOPIC, "")

    @property
    def why(self) -> str:
        """The reason, if the group's consumer gave one."""
        return self.message.properties.get(LANE_WHY, "")

    @property
    def attempts(self) -> int:
        return self.message.reconsume_times

    @property
    def since(self) -> datetime:
        return self.message.stored_at

    @property
    def search_key(self) -> str:
        """The word by which the copy of a redrive is found."""
        return f"{REDRIVEN}{self.group}/{self.id}"

    @property
    def own_properties(self) -> dict[str, str]:
        """The properties that the sender set."""
        return {name: value for name, value in self.message.properties.items() if name not in _SYSTEM}


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """A queue of dead letters, without those that were discarded."""

    queue: MessageQueue
    first: int
    end: int

    @property
    def count(self) -> int:
        return max(0, self.end - self.first)


def dead_letter_queues(admin: Admin, topic: TopicDescription) -> tuple[DeadLetterQueue, ...]:
    """What a dead-letter topic holds; redriven ones included, discarded ones not."""
    return tuple(
        DeadLetterQueue(each.queue, max(each.first, admin.committed(topic.topic, each.queue) or 0), each.end)
        for each in topic.queues
    )


def read_dead_letters(servers: str, group: str) -> Iterator[GroupDeadLetter]:
    """The dead letters of a group, oldest first in each queue; none if the group never gave up a message."""
    topic = dead_letter_topic(check_group(group))
    try:
        with Admin(servers) as admin:
            queues = dead_letter_queues(admin, admin.describe_topic(topic))
        reader = TopicReader(servers, topic)
    except TopicNotFound:
        return
    with reader:
        for each in queues:
            yield from (GroupDeadLetter(group, message) for message in reader.read(each.queue, each.first, each.end))


def read_dead_letter(servers: str, group: str, id: str) -> GroupDeadLetter:
    """The dead letter with this id; `UsageError` if there is none."""
    wanted, offset = parse_id(group, id)
    try:
        with TopicReader(servers, wanted.topic) as reader:
            for queue in reader.queues:
                if queue == wanted:
                    for message in reader.read(queue, offset, offset + 1):
                        return GroupDeadLetter(group, message)
    except TopicNotFound:
        pass
    raise UsageError(f"group {group} has no dead letter {id}: see lanemq dead list --group {group}")


def dead_letters_of(admin: Admin, group: str, messages: Sequence[Message]) -> dict[int, GroupDeadLetter]:
    """Those of the messages, which have one key and one queue, that the group gave up; by their offset.

    Of a key, the newest 64 are found.
    """
    letters = admin.find_copies(dead_letter_topic(group), messages)
    given_up = {each.properties.get(PropertyName.ORIGIN_ID): GroupDeadLetter(group, each) for each in letters}
    pairs = ((one.queue_offset, given_up.get(one.message_id) or given_up.get(one.stored_id)) for one in messages)
    return {offset: letter for offset, letter in pairs if letter is not None}


def parse_id(group: str, id: str) -> tuple[MessageQueue, int]:
    """The queue and the offset that an id names."""
    broker, _, place = id.partition("/")
    number, _, offset = place.partition("/")
    if not broker or not number.isdecimal() or not offset.isdecimal():
        raise UsageError(f"{id!r} is not the id of a dead letter: write BROKER/QUEUE/OFFSET, as the list shows it")
    return MessageQueue(dead_letter_topic(check_group(group)), broker, int(number)), int(offset)


def was_redriven(admin: Admin, letter: GroupDeadLetter) -> bool:
    """Whether a copy of the dead letter was sent to its topic, and is still kept there."""
    try:
        return bool(letter.topic and admin.find_key(letter.topic, letter.search_key, limit=1))
    except TopicNotFound:
        return False


def with_states(admin: Admin, letters: Iterable[GroupDeadLetter]) -> list[GroupDeadLetter]:
    """The letters with what became of each, for which a broker is asked about each."""
    return [replace(letter, redriven=was_redriven(admin, letter)) for letter in letters]


class CopySender(Protocol):
    """What a redrive needs of a producer; its codec must be `bytes`."""

    def send(
        self,
        topic: str,
        value: bytes,
        /,
        *,
        key: str | None,
        tag: str | None,
        keys: Sequence[str],
        properties: Mapping[str, str],
    ) -> object: ...


def open_dead_letters(admin: Admin, letters: Iterable[GroupDeadLetter]) -> list[GroupDeadLetter]:
    """Those that were not redriven; `UsageError` for one that cannot be."""
    letters_left = [each for each in letters if not was_redriven(admin, each)]
    for each in letters_left:
        check_topic_is_known(each)
    return letters_left


def check_topic_is_known(letter: GroupDeadLetter) -> None:
    """Refuses a dead letter of another client that does not name its topic."""
    if not letter.topic:
        raise UsageError(
            f"dead letter {letter.id} does not say which topic it was sent to: send it with lanemq send, or discard it"
        )


def send_again(producer: CopySender, letter: GroupDeadLetter) -> None:
    """Sends a copy to the topic of the message, with everything that its sender set."""
    message = letter.message
    producer.send(
        letter.topic,
        message.body,
        key=message.key,
        tag=message.tag,
        keys=[*message.keys, letter.search_key],
        properties=letter.own_properties,
    )


def discard_dead_letters(admin: Admin, group: str, through: Mapping[MessageQueue, int]) -> int:
    """Discards the dead letters of each queue up to and including an offset, and returns their number.

    Pass the offset of the last one that you have seen, so that newer ones are kept.
    """
    topic = dead_letter_topic(check_group(group))
    count = 0
    for each in dead_letter_queues(admin, admin.describe_topic(topic)):
        upto = min(each.end, through.get(each.queue, -1) + 1)
        if upto > each.first:
            admin.reset_offsets(topic, topic, to=AtOffset(QueueOffset(upto)), queues=[each.queue])
            count += upto - each.first
    return count


def last_of_each_queue(letters: Collection[GroupDeadLetter]) -> dict[MessageQueue, int]:
    """The offset of the last dead letter of each queue."""
    return {each.message.queue: each.message.queue_offset for each in letters}


def count_dead_letters(admin: Admin) -> Counter[str]:
    """The number of dead letters by group; redriven ones included, discarded ones not."""
    names = [name for name in admin.topics(internal=True) if name.startswith(DEAD_LETTER_PREFIX)]
    return Counter(
        {
            name.removeprefix(DEAD_LETTER_PREFIX): sum(
                each.count for each in dead_letter_queues(admin, admin.describe_topic(name))
            )
            for name in names
        }
    )
