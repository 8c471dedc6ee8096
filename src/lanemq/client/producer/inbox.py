"""Where `submit` leaves plain messages while the broker is busy; they get their places in bulk.

A message that finds earlier ones unanswered would only wait in its lane. So the call does what its caller must hear
of at once (it encodes the value, looks at the size, names the message) and leaves it here. The next answer, the
keeper or the next call that takes the long way gives everything in here its place, before anything else is done.

Rules: one line for all topics, so whoever places a message places everything left before it first. The inbox is open
only while an answer is awaited that will empty it, and while all that it can hold fits into the buffer: a message is
never left behind, and never one too many.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from lanemq._fast import compiled
from lanemq.client.producer.engine import SendEngine
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.outcomes import NotStored
from lanemq.client.producer.packing import Packer
from lanemq.client.producer.requests import PARCEL_OVERHEAD, Parcel
from lanemq.client.producer.waiters import Ticket
from lanemq.client.producer.work import EngineLane, Work
from lanemq.client.routing import TopicRoute
from lanemq.core.sending.sharding import pick_queue
from lanemq.model.errors import LaneFrozen
from lanemq.model.queue import MessageQueue

MOST_MESSAGES = 1024
"""Fewer make small batches; more keep the broker waiting while the caller fills the inbox."""

MOST_BODY_BYTES, MOST_KEY = 4096, 250
"""What is larger takes the long way, so that a full inbox is small beside the buffer."""

MOST_BYTES = MOST_MESSAGES * (MOST_BODY_BYTES + 4 * MOST_KEY + 2 * PARCEL_OVERHEAD)

KNOWN_KEYS, KNOWN_TOPICS = 16_384, 256
"""Keys of a topic whose queue is remembered, and topics; beyond that they are forgotten all at once."""


class Place:
    """A queue, and what the engine asks about it."""

    __slots__ = ("checks_stamps", "queue")

    def __init__(self, queue: MessageQueue, checks_stamps: bool) -> None:
        self.queue = queue
        self.checks_stamps = checks_stamps


class Places(dict[str, Place]):
    """The places of a topic's keys, true for one route; keys that need a second look have none."""

    def __init__(self, route: TopicRoute) -> None:
        super().__init__()
        self.route = route
        self._by_queue = {queue: Place(queue, route.is_lane(queue.broker)) for queue in route.publish}

    def find(self, key: str) -> Place | None:
        """The place of a key that was not asked for before."""
        if not 0 < len(key) <= MOST_KEY or "\x01" in key or "\x02" in key or not _is_text(key):
            return None
        if len(self) >= KNOWN_KEYS:
            self.clear()
        place = self[key] = self._by_queue[pick_queue(key, self.route.publish)]
        return place


def _is_text(key: str) -> bool:
    """Half of a surrogate pair cannot be written as UTF-8."""
    return key.isascii() or not any("\ud800" <= unit <= "\udfff" for unit in key)


@compiled
class Intake:
    """The line itself. `take` needs no lock: what it does to the line is one step."""

    def __init__(
        self,
        encode: Callable[[object], bytes],
        next_id: Callable[[], str],
        make: Callable[[], Any],
        empty: Callable[[], None],
        most_body: int,
        as_it_is: bool,
    ) -> None:
        self.places: dict[str, Places] = {}
        self.open = False
        self._encode, self._next_id, self._make, self._empty = encode, next_id, make, empty
        self._most_body, self._as_it_is = most_body, as_it_is
        self._line: deque[tuple[Place, str, bytes, str, Ticket]] = deque()

    def take(self, topic: str, key: str, value: object) -> Any:
        """The ticket of a message that is in the line now, or None: then it has to take the long way."""
        places = self.places.get(topic)
        if places is None or not self.open or len(self._line) >= MOST_MESSAGES:
            return None
        place = places.get(key) or places.find(key)
        body = value if self._as_it_is and type(value) is bytes else self._encode(value)
        if place is None or type(body) is not bytes or len(body) > self._most_body:
            return None
        ticket = self._make()
        self._line.append((place, key, body, self._next_id(), ticket))
        if not self.open:
            self._empty()  # closed meanwhile, so nobody else may come
        return ticket

    def __len__(self) -> int:
        return len(self._line)

    def take_out(self) -> dict[Place, list[Parcel]]:
        """Everything in the line, packed, by place and in order. For one thread at a time."""
        placed: dict[Place, list[Parcel]] = {}
        for _ in range(len(self._line)):
            place, key, body, message_id, ticket = self._line.popleft()
            text = f"__SHARDINGKEY\x01{key}\x02UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02"
            size = len(body) + len(text) + PARCEL_OVERHEAD
            parcel = Parcel(body, text, message_id, key, 0, False, False, ticket, 0, size)
            if place in placed:
                placed[place].append(parcel)
            else:
                placed[place] = [parcel]
        return placed


class SendInbox:
    """The intake of one producer, and the way from there into its engine. All but `take` under the engine's lock."""

    def __init__(
        self, options: ProducerOptions, packer: Packer, make: Callable[[], Any], empty: Callable[[], None]
    ) -> None:
        most_body = min(MOST_BODY_BYTES, options.compress_above - 1, options.max_body_bytes)
        self._intake = Intake(packer.encode, packer.next_id, make, empty, most_body, packer.as_it_is)
        # Lingering is counted from the call; here nobody would count.
        self._free = -1 if options.linger_ms else options.buffer_bytes - MOST_BYTES
        self.take = self._intake.take

    def __len__(self) -> int:
        return len(self._intake)

    def adjust(self, awaits_answer: bool, buffered_bytes: int) -> None:
        """Open while an answer is sure to come and there is room for a full inbox."""
        self._intake.open = awaits_answer and buffered_bytes <= self._free

    def know(self, route: TopicRoute) -> None:
        """Messages of this topic may come in; not while it is only about to exist, or closed to senders."""
        places = self._intake.places
        if route.provisional or not route.publish:
            places.pop(route.topic, None)
        elif route.topic not in places or places[route.topic].route is not route:
            if len(places) >= KNOWN_TOPICS:
                places.clear()
            places[route.topic] = Places(route)

    def forget_old(self, fresh: Callable[[str], TopicRoute | None]) -> None:
        """Topics whose route has to be asked for again, which the long way does."""
        places = self._intake.places
        for topic in [each for each, known in places.items() if fresh(each) is not known.route]:
            del places[topic]

    def place_all(self, engine: SendEngine) -> tuple[Work, bool]:
        """Gives everything in here its place. What to do for that, and whether the keeper has to look at it."""
        work, wake = Work(), False
        for place, parcels in self._intake.take_out().items():
            lane = self._offer(engine, place, parcels, work)
            if lane is not None:
                work.requests += engine.pump(lane)
                wake = wake or engine.needs_keeper(lane)
        return work, wake

    def _offer(self, engine: SendEngine, place: Place, parcels: list[Parcel], work: Work) -> EngineLane | None:
        """Those that are turned away hear of it, each for itself: others of the queue may be let in."""
        try:
            return engine.offer(place.queue, parcels, checks_stamps=place.checks_stamps, hurry=False)
        except LaneFrozen as error:
            if len(parcels) == 1:
                work.outcomes.append(NotStored(parcels, error.with_traceback(None)))
                return None
        lanes = [self._offer(engine, place, [parcel], work) for parcel in parcels]
        return next((lane for lane in lanes if lane is not None), None)
