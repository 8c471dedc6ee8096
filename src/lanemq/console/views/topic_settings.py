"""The settings of a topic: what can be changed, and what a change will do."""

from collections import Counter
from dataclasses import dataclass

from lanemq.client.admin.views import TopicDescription
from lanemq.console.views.topics import MAX_QUEUES
from lanemq.model.errors import InvalidOption
from lanemq.model.wording import plural

ORDERS = {"key": True, "none": False}


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What a topic has now, or should have."""

    queues: int
    """Per broker."""
    ordered: bool

    @property
    def text(self) -> str:
        order = "ordered by key" if self.ordered else "without an order"
        return f"{plural(self.queues, 'queue')} per broker, {order}"


def current_settings(topic: TopicDescription) -> TopicSettings:
    per_broker = Counter(each.queue.broker for each in topic.queues)
    return TopicSettings(max(per_broker.values(), default=0), topic.ordered)


def parse_settings(queues: str, order: str) -> TopicSettings:
    """What a form asks for. Raises `InvalidOption`."""
    if order not in ORDERS:
        raise InvalidOption(f"{order[:40]!r} is not an order: write key or none")
    if not queues.strip().isdecimal() or not 1 <= int(queues) <= MAX_QUEUES:
        raise InvalidOption(f"{queues[:40]!r} is not a number of queues: write 1 to {MAX_QUEUES}")
    return TopicSettings(int(queues), ORDERS[order])


def why_not(topic: TopicDescription, wanted: TopicSettings) -> str:
    """Why the settings cannot be changed in this way; empty if they can."""
    now, messages = current_settings(topic), sum(each.messages for each in topic.queues)
    if topic.away:
        return f"Broker {', '.join(topic.away)} does not answer. A topic is changed on all brokers at once."
    if now == wanted:
        return "These are the settings that the topic has."
    if now.ordered:
        return "The topic is ordered: other queues would move keys past their messages. Create another topic."
    if wanted.ordered and wanted.queues != now.queues:
        return "Change one of the two: first the number of queues, then the order."
    if wanted.ordered and messages:
        return f"The topic holds {plural(messages, 'message')} without an order, which newer ones could overtake."
    if wanted.queues < now.queues:
        return "Fewer queues would hide the messages of those that go. Create another topic."
    return ""


def effects(now: TopicSettings, wanted: TopicSettings) -> tuple[str, ...]:
    """What a change means for those who use the topic."""
    if wanted.ordered:
        return (
            "Every message needs a key from now on; one without is refused.",
            "The number of queues is fixed from now on, and the topic stays ordered.",
        )
    return (
        f"New messages go to {wanted.queues} queues per broker instead of {now.queues}, within half a minute.",
        "Members of its groups divide the queues again.",
    )
