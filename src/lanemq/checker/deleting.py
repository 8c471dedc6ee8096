"""A topic that was deleted is forgotten; another one of its name starts at offset 0 and owes it nothing.

What is still said of the old one's messages, by members that had them in memory or by late answers, is about a topic
that is gone, and proves nothing. So the messages that were open at that time stay known by their ids.
"""

from lanemq.checker.events import TopicDeleted
from lanemq.checker.state import State


class Deleting:
    def __init__(self, state: State) -> None:
        self._state = state

    def topic_deleted(self, event: TopicDeleted) -> None:
        state, topic = self._state, event.topic
        gone = state.gone.setdefault(topic, set())
        gone.update(state.sent.pop(topic, ()))
        for place in [place for place in state.queues if place[0] == topic]:
            gone.update(state.queues.pop(place).where)
        state.groups = {place: held for place, held in state.groups.items() if place[1] != topic}
        state.senders = {name: sender for name, sender in state.senders.items() if name[1] != topic}
        state.deleted_t[topic] = event.t
