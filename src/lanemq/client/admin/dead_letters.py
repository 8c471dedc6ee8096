"""Dead letters of consumer groups: messages that a group gave up, in its topic `%DLQ%<group>`.

A dead letter stays where it is when it is redriven. The copy that is sent to its topic carries the dead letter's id
among its search keys, so that a second redrive finds it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.topic_reader import TopicReader
from lanemq.client.message import Message
from lanemq.model.errors import TopicNotFound, UsageError
from lanemq.model.names import DEAD_LETTER_PREFIX, check_group, dead_letter_topic
from lanemq.wire.properties import LANE_ORIGIN, LANE_STAMP, LANE_WHY, PropertyName

_SYSTEM = frozenset(
    {name for name in vars(PropertyName).values() if isinstance(name, str) and name.isupper()}
    | {LANE_ORIGIN, LANE_STAMP, LANE_WHY}
)
"""Properties that are set anew when a message is sent."""


@dataclass(frozen=True, slots=True)
class GroupDeadLetter:
    """One message that a group gave up."""

    group: str
    message: Message

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
        return f"redriven:{self.group}/{self.id}"

    @property
    def own_properties(self) -> dict[str, str]:
        """The properties that the sender set."""
        return {name: value for name, value in self.message.properties.items() if name not in _SYSTEM}


def read_dead_letters(servers: str, group: str) -> Iterator[GroupDeadLetter]:
    """The dead letters of a group, oldest first in each queue; none if the group never gave up a message."""
    try:
        reader = TopicReader(servers, dead_letter_topic(check_group(group)))
    except TopicNotFound:
        return
    with reader:
        for queue in reader.queues:
            first, end = reader.bounds(queue)
            yield from (GroupDeadLetter(group, message) for message in reader.read(queue, first, end))


def read_dead_letter(servers: str, group: str, id: str) -> GroupDeadLetter:
    """The dead letter with this id; `UsageError` if there is none."""
    broker, _, place = id.partition("/")
    number, _, offset = place.partition("/")
    if not broker or not number.isdecimal() or not offset.isdecimal():
        raise UsageError(f"{id!r} is not the id of a dead letter: write BROKER/QUEUE/OFFSET, as the list shows it")
    try:
        with TopicReader(servers, dead_letter_topic(check_group(group))) as reader:
            for queue in reader.queues:
                if (queue.broker, queue.queue_id) == (broker, int(number)):
                    for message in reader.read(queue, int(offset), int(offset) + 1):
                        return GroupDeadLetter(group, message)
    except TopicNotFound:
        pass
    raise UsageError(f"group {group} has no dead letter {id}: see lanemq dead list --group {group}")


def was_redriven(admin: Admin, letter: GroupDeadLetter) -> bool:
    """Whether a copy of the dead letter was sent to its topic, and is still kept there."""
    try:
        return bool(letter.topic and admin.find_key(letter.topic, letter.search_key, limit=1))
    except TopicNotFound:
        return False


def count_dead_letters(admin: Admin) -> Counter[str]:
    """The number of dead letters that are kept, redriven ones included, by group."""
    names = [name for name in admin.topics(internal=True) if name.startswith(DEAD_LETTER_PREFIX)]
    return Counter(
        {
            name.removeprefix(DEAD_LETTER_PREFIX): sum(each.messages for each in admin.describe_topic(name).queues)
            for name in names
        }
    )
