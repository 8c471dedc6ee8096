"""Messages of a lane that was set aside: what was applied before is a repeat, unless newer messages passed them."""

import sqlite3
from pathlib import Path

from tests.chaos.members import until

from lanemq import Admin, App, Backoff, HoldKey, HoldQueue, Message, Producer
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.effects import once
from lanemq.testing.embedded import EmbeddedBroker

MANY = 150
"""More than a member keeps of a held lane (64), so that the lane goes to the broker."""


def new_database(folder: Path) -> Path:
    file = folder / "effects.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE log (n INTEGER)")
    return file


def effects(file: Path) -> list[int]:
    with sqlite3.connect(file) as database:
        return [number for (number,) in database.execute("SELECT n FROM log ORDER BY rowid")]


def billing(address: str, file: Path, on_fail: HoldKey | HoldQueue, failures: int = 0) -> App:
    """An app whose database refuses the first connections."""
    app, left = App(address, group="billing"), [failures]

    def connect() -> sqlite3.Connection:
        if left[0]:
            left[0] -= 1
            raise ConnectionRefusedError("the database is away for a moment")
        return sqlite3.connect(file, timeout=30)

    @app.ordered("orders", on_fail=on_fail)
    def bill(event: dict[str, int], message: Message) -> None:
        with once(message, connect) as database:
            database.execute("INSERT INTO log VALUES (?)", (event["n"],))

    return app


def test_what_was_applied_before_its_lane_was_set_aside_is_a_repeat(tmp_path: Path) -> None:
    """The group went back, and the next member met an error of a moment: the key must not wait for an operator."""
    file = new_database(tmp_path)
    with EmbeddedBroker() as broker, Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic("orders", queues=1, ordered=True)
        producer.send_many("orders", [("k", {"n": number}) for number in range(MANY)])
        with billing(broker.address, file, HoldKey()):
            until("the first member is done", lambda: len(effects(file)) == MANY)
        admin.reset_offsets("billing", "orders", to="first")
        producer.send_many("orders", [("k", {"n": MANY + number}) for number in range(MANY)])
        with billing(broker.address, file, HoldKey(backoff=Backoff(first=0.1)), failures=1):
            until("the second member is done", lambda: len(effects(file)) == 2 * MANY)
    assert effects(file) == list(range(2 * MANY))


def test_a_message_that_newer_ones_have_passed_is_refused_also_after_a_crash_of_the_broker(tmp_path: Path) -> None:
    """A member that does not know lanes ran newer messages of the key: whether this one was applied is not known."""
    file, parks = new_database(tmp_path), HoldKey(retries=0)
    with EmbeddedBroker() as broker, Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic("orders", queues=1, ordered=True)
        producer.send("orders", {"n": 0}, key="k")
        with ParkedAdmin(broker.address) as parked:
            with billing(broker.address, file, parks, failures=1):
                until("the key is parked", lambda: bool(parked.lanes(group="billing")))
            producer.send("orders", {"n": 1}, key="k")
            with billing(broker.address, file, HoldQueue()):
                until("a newer message has passed", lambda: effects(file) == [1])
            broker.kill()
            broker.restart()
            with billing(broker.address, file, parks):
                (lane,) = parked.lanes(group="billing")
                parked.redrive(lane)
                until("it failed again", lambda: "EffectRefused" in parked.lanes(group="billing")[0].reason)
    assert effects(file) == [1]
