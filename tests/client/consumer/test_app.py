"""`App` with a real broker, over real sockets."""

import asyncio
import os
import signal
import threading
from typing import Any

import pytest
from tests.client.consumer.with_broker import WAIT, Inbox, send, wait_for

from lanemq.client.consumer.app import App
from lanemq.client.consumer.options import Sharing, StartFrom
from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.consumer.turns.handler import Retry, Skip, ToDeadLetter
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import DeadLetter, HoldKey, HoldQueue, SendBack
from lanemq.model.errors import Closed, InvalidOption
from lanemq.testing.embedded import EmbeddedBroker

QUICK = HoldKey(backoff=Backoff(first=0.01, max=0.02))


@pytest.mark.row("A2")
@pytest.mark.row("A6")
def test_each_key_arrives_in_order_once(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=10, each=10)
    inbox, app = Inbox(), App(broker.address, group=f"g-{topic}")

    @app.ordered(topic)
    def on_event(event: dict[str, int], message: Message) -> None:
        inbox.add((message.key, event["n"]))

    with app:
        inbox.wait(100)
    for key in range(10):
        assert [n for k, n in inbox.items if k == f"k{key}"] == list(range(10))


def test_a_coroutine_handler_gets_the_same(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=4, each=5)
    inbox, app = Inbox(), App(broker.address, group=f"g-{topic}")

    @app.ordered(topic)
    async def on_event(event: dict[str, int], message: Message) -> None:
        await asyncio.sleep(0)
        inbox.add((message.key, event["n"]))

    with app:
        inbox.wait(20)
    for key in range(4):
        assert [n for k, n in inbox.items if k == f"k{key}"] == list(range(5))


@pytest.mark.row("A85")
def test_what_was_done_before_a_stop_is_not_delivered_again(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=10)
    first, second = Inbox(), Inbox()
    for inbox in (first, second):
        app = App(broker.address, group=f"g-{topic}")
        app.ordered(topic)(lambda event, inbox=inbox: inbox.add(event["n"]))
        with app:
            inbox.wait(10) if inbox is first else None
            if inbox is second:
                send(broker, topic, keys=1, each=1)
                inbox.wait(1)
    assert first.items == list(range(10))
    assert second.items == [0]


@pytest.mark.row("A80")
def test_a_failing_key_holds_only_itself_and_repeats_in_order(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=2, each=3)
    inbox, app = Inbox(), App(broker.address, group=f"g-{topic}")

    @app.ordered(topic, on_fail=QUICK)
    def on_event(event: dict[str, int], message: Message) -> None:
        inbox.add((message.key, event["n"], message.attempt))
        if message.key == "k0" and event["n"] == 1 and message.attempt < 3:
            raise ValueError("not yet")

    with app:
        inbox.wait(8)
    mine = [(n, attempt) for key, n, attempt in inbox.items if key == "k0"]
    assert mine == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1)]


@pytest.mark.row("A101")
def test_retry_after_brings_the_same_message_again(broker: EmbeddedBroker, topic: str) -> None:
    """A handler whose predecessor state has not arrived yet asks for another try."""
    send(broker, topic, keys=1, each=2)
    inbox, app = Inbox(), App(broker.address, group=f"g-{topic}")

    @app.ordered(topic)
    def on_event(event: dict[str, int], message: Message) -> None:
        inbox.add(event["n"])
        if message.attempt == 1:
            raise Retry(after=0.02)

    with app:
        inbox.wait(4)
    assert inbox.items == [0, 0, 1, 1]


def test_skip_lets_the_lane_go_on(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=3)
    inbox, app = Inbox(), App(broker.address, group=f"g-{topic}")

    @app.ordered(topic)
    def on_event(event: dict[str, int]) -> None:
        inbox.add(event["n"])
        if event["n"] == 1:
            raise Skip("not for us")

    with app:
        inbox.wait(3)
    assert inbox.items == [0, 1, 2]


def dead_letters(broker: EmbeddedBroker, group: str, count: int) -> list[Message]:
    with PullConsumer(broker.address, group="undertaker") as consumer:
        consumer.assign(consumer.queues(f"%DLQ%{group}"))
        found: list[Message] = []
        for _ in range(int(WAIT * 5)):
            found += consumer.poll(0.2)
            if len(found) >= count:
                break
        return found


@pytest.mark.row("A106")
def test_a_dead_letter_keeps_everything_of_the_message(broker: EmbeddedBroker, topic: str) -> None:
    with Producer(broker.address) as producer:
        producer.send(topic, {"n": 0}, key="k", tag="T", keys=["search"], properties={"mine": "yes"})
        producer.send(topic, {"n": 1}, key="k")
    group, inbox = f"g-{topic}", Inbox()
    app = App(broker.address, group=group)

    @app.ordered(topic)
    def on_event(event: dict[str, int], message: Message) -> None:
        inbox.add(message)
        if event["n"] == 0:
            raise ToDeadLetter("no such account")

    with app:
        original = inbox.wait(2)[0]
        (letter,) = dead_letters(broker, group, 1)
    assert letter.body == original.body
    assert (letter.key, letter.tag, letter.keys) == ("k", "T", ("search",))
    assert letter.properties["mine"] == "yes"
    assert letter.properties["RETRY_TOPIC"] == topic
    assert letter.properties["ORIGIN_MESSAGE_ID"] == original.message_id
    assert letter.properties["LANE_WHY"] == "no such account"
    assert "LANE_STAMP" not in letter.properties


@pytest.mark.row("A108")
@pytest.mark.row("A109")
def test_used_up_retries_end_in_the_dead_letters_and_the_queue_goes_on(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=2)
    group, inbox = f"g-{topic}", Inbox()
    app = App(broker.address, group=group)
    policy = DeadLetter(skip=True, hold=HoldQueue(retries=2, suspend=0.01))

    @app.ordered(topic, on_fail=policy)
    def on_event(event: dict[str, int]) -> None:
        inbox.add(event["n"])
        if event["n"] == 0:
            raise ValueError("never")

    with app:
        inbox.wait(4)
        letters = dead_letters(broker, group, 1)
    assert inbox.items == [0, 0, 0, 1]
    assert len(letters) == 1


@pytest.mark.row("A17")
def test_tags_choose_messages_and_the_offset_passes_the_others(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=20, tags="ABCDE")
    inbox, app = Inbox(), App(broker.address, group=f"g-{topic}")
    app.ordered(topic, tags="A || C || D")(lambda event: inbox.add(event["n"]))
    with app:
        inbox.wait(12)
    assert inbox.items == [n for n in range(20) if n % 5 in (0, 2, 3)]
    with PullConsumer(broker.address, group=f"g-{topic}") as reader:
        assert sum(reader.committed(queue) or 0 for queue in reader.queues(topic)) == 20


def test_batches_arrive_as_lists(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=10)
    inbox, app = Inbox(), App(broker.address, group=f"g-{topic}")

    @app.ordered(topic, batch_size=4)
    def on_events(events: list[dict[str, int]], messages: tuple[Message, ...]) -> None:
        assert len(events) == len(messages) <= 4
        for event in events:
            inbox.add(event["n"])

    with app:
        inbox.wait(10)
    assert inbox.items == list(range(10))


def test_a_new_group_can_begin_at_the_end(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=5)
    inbox, app = Inbox(), App(broker.address, group=f"g-{topic}", start=StartFrom.LAST)
    app.ordered(topic)(lambda event: inbox.add(event["n"]))
    with app:
        with Producer(broker.address) as producer:
            producer.send(topic, {"n": 99}, key="k0")
        inbox.wait(1)
    assert inbox.items == [99]


@pytest.mark.row("A25")
def test_broadcasting_members_all_get_everything(broker: EmbeddedBroker, topic: str, tmp_path: Any) -> None:
    send(broker, topic, keys=2, each=5)
    inboxes = [Inbox(), Inbox()]
    apps = [
        App(broker.address, group=f"g-{topic}", sharing=Sharing.BROADCASTING, offsets_folder=tmp_path / str(n))
        for n in range(2)
    ]
    for app, inbox in zip(apps, inboxes, strict=True):
        app.ordered(topic)(lambda event, inbox=inbox: inbox.add(event["n"]))
    with apps[0], apps[1]:
        for inbox in inboxes:
            inbox.wait(10)
    inbox = Inbox()
    again = App(broker.address, group=f"g-{topic}", sharing=Sharing.BROADCASTING, offsets_folder=tmp_path / "0")
    again.ordered(topic)(lambda event: inbox.add(event["n"]))
    with again:
        with Producer(broker.address) as producer:
            producer.send(topic, {"n": 77}, key="k0")
        inbox.wait(1)
    assert inbox.items == [77]


@pytest.mark.row("A46")
@pytest.mark.row("A12")
@pytest.mark.slow
def test_a_second_member_takes_its_share_without_inversion_or_loss(broker: EmbeddedBroker, topic: str) -> None:
    inbox = Inbox()

    def make() -> App:
        app = App(broker.address, group=f"g-{topic}")

        @app.ordered(topic)
        def on_event(event: dict[str, int], message: Message) -> None:
            inbox.add((message.key, event["n"], app))

        return app

    first, second = make(), make()
    send(broker, topic, keys=8, each=20)
    with first:
        inbox.wait(160)
        with second:
            wait_for(lambda: any(queue.topic == topic for queue in second.snapshot().queues))
            send(broker, topic, keys=8, each=20)
            inbox.wait(320)
    assert len({id(app) for *_, app in inbox.items}) == 2
    for key in range(8):
        mine = [n for k, n, _ in inbox.items if k == f"k{key}"]
        assert mine == [*range(20), *range(20)]


@pytest.mark.row("A20")
def test_a_second_start_is_refused(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=1)
    app = App(broker.address, group=f"g-{topic}")
    app.ordered(topic)(lambda event: None)
    with app, pytest.raises(Closed):
        app.start()


def test_a_signal_finishes_what_runs_and_commits_it(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=1)
    app = App(broker.address, group=f"g-{topic}")
    events: list[str] = []

    @app.ordered(topic)
    async def on_event(event: dict[str, int]) -> None:
        events.append("begun")
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        events.append("ended")

    app.run()
    assert events == ["begun", "ended"]
    with PullConsumer(broker.address, group=f"g-{topic}") as reader:
        assert sum(reader.committed(queue) or 0 for queue in reader.queues(topic)) == 1


def test_a_parked_key_runs_again_when_resumed(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=2)
    inbox, healed = Inbox(), threading.Event()
    app = App(broker.address, group=f"g-{topic}")

    @app.ordered(topic, on_fail=HoldKey(retries=0))
    def on_event(event: dict[str, int]) -> None:
        inbox.add(event["n"])
        if not healed.is_set():
            raise ValueError("down")

    with app:
        inbox.wait(1)
        wait_for(lambda: any(each.lanes.parked for each in app.snapshot().queues.values()))
        healed.set()
        assert app.resume(topic, "k0")
        inbox.wait(3)
    assert inbox.items == [0, 0, 1]


def test_the_broker_may_restart_and_consumption_goes_on(topic: str) -> None:
    with EmbeddedBroker() as broker:
        send(broker, topic, keys=2, each=3)
        inbox, app = Inbox(), App(broker.address, group="g")
        app.ordered(topic)(lambda event: inbox.add(event["n"]))
        with app:
            inbox.wait(6)
            broker.stop()
            broker.start()
            send(broker, topic, keys=2, each=3)
            inbox.wait(12)
        assert len(inbox.items) == 12


@pytest.mark.parametrize(
    ("register", "why"),
    [
        (lambda app: app.ordered("orders", on_fail=SendBack())(print), "concurrent"),
        (lambda app: app.ordered("orders", lanes=0)(lambda e: None), "lanes=0"),
        (lambda app: app.ordered("orders")(lambda a, b, c: None), "must take"),
        (lambda app: app.ordered("or ders")(lambda e: None), "topic name"),
        (lambda app: [app.ordered("orders")(lambda e: None) for _ in range(2)], "already"),
        (lambda app: app.ordered("orders", tags="a ||")(lambda e: None), "tags"),
    ],
)
def test_mistakes_are_reported_at_registration(register: Any, why: str) -> None:
    with pytest.raises((InvalidOption, ValueError), match=why):
        register(App("localhost:9876", group="g"))


@pytest.mark.parametrize("decorator", ["ordered", "concurrent"])
def test_a_decorator_without_parentheses_is_refused_with_the_right_form(decorator: str) -> None:
    with pytest.raises(InvalidOption, match=rf'write @app.{decorator}\("orders"\)'):
        getattr(App("127.0.0.1:1", group="g"), decorator)(lambda message: None)


def test_an_app_without_handlers_does_not_start() -> None:
    with pytest.raises(InvalidOption, match="nothing is subscribed"):
        App("localhost:9876", group="g").start()
