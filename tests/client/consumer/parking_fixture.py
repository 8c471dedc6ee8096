"""A broker whose data survives restarts, one queue, and members whose handlers fail for chosen keys."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos.members import until

from lanemq.broker.config import BrokerOptions
from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.verdict import Report
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin, ParkedLaneView
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.clock import SystemClock
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import HoldKey
from lanemq.core.lane_status import LaneStatus
from lanemq.history import open_history
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker

TOPIC, GROUP = "orders", "billing"
QUEUE = MessageQueue(TOPIC, "lanemq", 0)
QUICK = HoldKey(retries=1, backoff=Backoff(0.005, 1.0, 0.005))
SOON = {"commit_every": 0.05}


class ParkingFixture:
    """`failing` has the keys whose messages fail now; `done` has every handled message, in order."""

    def __init__(self, folder: Path, *, ordered: bool = True, **options: Any) -> None:
        self.folder = folder
        settings = BrokerOptions(folder / "data", listen=Address("127.0.0.1", 0), history=folder / "history", **options)
        self.broker = EmbeddedBroker(settings).start()
        self.failing: set[str] = set()
        self.done: list[tuple[str, int]] = []
        self.calls: Counter[str] = Counter()
        self.by_member: list[tuple[str, str, int]] = []
        self.before: Callable[[Message], None] = lambda message: None
        self._mutex = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        with Admin(self.broker.address) as admin:
            admin.create_topic(TOPIC, queues=1, ordered=ordered)

    def send(self, *keys: str) -> None:
        """Sends one message per key; an empty key means no key."""
        with Producer(self.broker.address) as producer:
            for key in keys:
                producer.send(TOPIC, {"of": key}, key=key or None)

    def member(self, name: str = "a", policy: HoldKey = QUICK, **options: Any) -> App:
        history = open_history(self.folder / "history", name, SystemClock().now_ns, role="consumer")
        settings = {**SOON, "client_id": name, "history": history, **options}
        app = App(self.broker.address, group=GROUP, **settings)

        @app.ordered(TOPIC, on_fail=policy, lanes=4)
        def on_message(message: Message) -> None:
            self.calls[message.key or ""] += 1
            self.before(message)
            if (message.key or "") in self.failing:
                raise ValueError(f"{message.key} fails")
            with self._mutex:
                self.done.append((message.key or "", message.queue_offset))
                self.by_member.append((name, message.key or "", message.queue_offset))

        app.start()
        self._ends += [history.close, lambda: app.stop()]
        return app

    def of(self, key: str) -> list[int]:
        """Offsets of a key's handled messages, in the order of handling."""
        with self._mutex:
            return [offset for each, offset in self.done if each == key]

    def lanes(self) -> list[ParkedLaneView]:
        with ParkedAdmin(self.broker.address) as admin:
            return admin.lanes(GROUP)

    def lane(self, key: str) -> ParkedLaneView | None:
        return next((lane for lane in self.lanes() if lane.key == key), None)

    def parked(self, key: str | None) -> list[int]:
        """Offsets in a key's parked lane."""
        with ParkedAdmin(self.broker.address) as admin:
            lane = next(iter(admin.lanes(GROUP, TOPIC, key)), None)
            return [] if lane is None else [record.queue_offset for record in admin.messages(lane)]

    def redrive(self, key: str) -> bool:
        with ParkedAdmin(self.broker.address) as admin:
            (lane,) = admin.lanes(GROUP, TOPIC, key)
            return admin.redrive(lane)

    def discard(self, key: str, count: int | None = None) -> int:
        with ParkedAdmin(self.broker.address) as admin:
            (lane,) = admin.lanes(GROUP, TOPIC, key)
            records = admin.messages(lane, count)
            return admin.discard(lane, lane.last if count is None else QueueOffset(records[-1].queue_offset))

    def committed(self) -> int | None:
        with Admin(self.broker.address) as admin:
            return admin.committed(GROUP, QUEUE)

    def wait_parked(self, key: str, offsets: list[int]) -> None:
        until(f"{key} is parked with {offsets}", lambda: self.parked(key) == offsets)
        lane = self.lane(key)
        assert lane is not None
        assert lane.status is LaneStatus.PARKED

    def wait_committed(self, offset: int) -> None:
        until(f"offset {offset} is committed", lambda: self.committed() == offset)

    def restart(self) -> None:
        self.broker.stop()
        self.broker.start()

    def judge(self, *require: str) -> Report:
        """Stops everything and returns the checker's report; producers write no history here."""
        self.close()
        return check([self.folder / "history"], CheckOptions(require=require, foreign_producers=True))

    def close(self) -> None:
        while self._ends:
            self._ends.pop()()
        if self.broker._broker is not None:
            self.broker.stop()
