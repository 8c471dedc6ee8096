"""Every public call refuses a value of a wrong type with an error of LaneMQ that names the argument."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lanemq import (
    Admin,
    App,
    AtOffset,
    AtTime,
    Backoff,
    CodecError,
    Consumer,
    DeadLetter,
    FlowLimits,
    HoldKey,
    HoldQueue,
    Message,
    MessageTooLarge,
    MissingKey,
    NewTopic,
    Outgoing,
    Park,
    ParkedAdmin,
    Producer,
    PullConsumer,
    PushConsumer,
    TlsOptions,
    UsageError,
)
from lanemq.testing import EmbeddedBroker, TestApp, assert_in_order

NOWHERE = "localhost:1"
Call = Callable[[], object]


def app(**settings: Any) -> Any:
    return App(NOWHERE, group="g", **settings)


def handle(event: object) -> None: ...


def consumer(**arguments: Any) -> Any:
    return Consumer(NOWHERE, **{"group": "g", "topics": "t"} | arguments)


def push(**arguments: Any) -> Any:
    return PushConsumer(NOWHERE, group="g", **arguments)


def pull(**arguments: Any) -> Any:
    return PullConsumer(NOWHERE, group="g", **arguments)


def made(kind: Any, **arguments: Any) -> Call:
    return lambda: kind(**arguments)


WITHOUT_BROKER: list[tuple[str, Call]] = [
    ("servers", lambda: App(5, group="g")),  # type: ignore[arg-type]
    ("servers", lambda: App([5], group="g")),  # type: ignore[list-item]
    ("servers", lambda: Producer(5)),  # type: ignore[arg-type]
    ("group", lambda: App(NOWHERE, group=None)),  # type: ignore[arg-type]
    ("lifespan", lambda: app(lifespan=3)),
    ("codec", lambda: app(codec=3)),
    ("flow", lambda: app(flow=3)),
    ("lease_times", lambda: app(lease_times=3)),
    ("allocation", lambda: app(allocation=3)),
    ("client_id", lambda: app(client_id=3)),
    ("offsets_folder", lambda: app(offsets_folder=3)),
    ("compat", lambda: app(compat=3)),
    ("commit_every", lambda: app(commit_every="1")),
    ("topic", lambda: app().ordered(5)(handle)),
    ("@app.ordered needs a topic", lambda: app().ordered(handle)),
    ("tags", lambda: app().ordered("t", tags=5)(handle)),
    ("on_fail", lambda: app().ordered("t", on_fail="retry")(handle)),
    ("on_fail", lambda: app().ordered("t", on_fail=HoldKey)(handle)),
    ("lanes", lambda: app().ordered("t", lanes="4")(handle)),
    ("lanes", lambda: app().ordered("t", lanes=True)(handle)),
    ("batch_size", lambda: app().ordered("t", batch_size="4")(handle)),
    ("workers", lambda: app().concurrent("t", workers="4")(handle)),
    ("handler", lambda: app().ordered("t")(5)),
    ("middleware", lambda: app().middleware(5)),
    ("as_type", lambda: app().provide(5, as_type=5)),
    ("topics", lambda: consumer(topics=5)),
    ("topics", lambda: consumer(topics=[])),
    ("on_fail", lambda: consumer(on_fail="retry")),
    ("tags", lambda: consumer(tags=5)),
    ("consume_threads", lambda: push(consume_threads="4")),
    ("consume_message_batch_max_size", lambda: push(consume_message_batch_max_size="4")),
    ("max_reconsume_times", lambda: push(max_reconsume_times="4")),
    ("suspend_current_queue_time_millis", lambda: push(suspend_current_queue_time_millis="4")),
    ("listener", lambda: push().register_orderly(5)),
    ("topic", lambda: push().subscribe(5)),
    ("batch", lambda: pull(batch="5")),
    ("request_timeout", lambda: pull(request_timeout="5")),
    ("tags", lambda: pull(tags=5)),
    ("queues", lambda: pull().assign(["x"])),
    ("queue", lambda: pull().seek("x", 1)),
    ("topic", lambda: pull().queues(5)),
    ("timeout", lambda: pull().poll("x")),
    ("when", lambda: pull().seek_to_time("x")),
    ("create", lambda: Producer(NOWHERE, create=5)),  # type: ignore[arg-type]
    ("codec", lambda: Producer(NOWHERE, codec=5)),  # type: ignore[arg-type]
    ("producer options: timeout", lambda: Producer(NOWHERE, timeout="5")),  # type: ignore[arg-type]
    ("timeout", lambda: Admin(NOWHERE, timeout="x")),  # type: ignore[arg-type]
    ("queues", made(NewTopic, name="t", queues="8")),
    ("ordered", made(NewTopic, name="t", ordered="yes")),
    ("retries", made(HoldKey, retries="3")),
    ("backoff", made(HoldKey, backoff=5)),
    ("keep", made(HoldKey, keep="3")),
    ("then", made(HoldKey, then="x")),
    ("retries", made(HoldQueue, retries="3")),
    ("suspend", made(HoldQueue, suspend="3")),
    ("hold", made(DeadLetter, skip=True, hold=3)),
    ("skip", made(DeadLetter, skip="yes")),
    ("first", made(Backoff, first="x")),
    ("factor", made(Backoff, factor="x")),
    ("messages", made(FlowLimits, messages="x")),
    ("key", made(Message.fake, key=1.5)),
    ("topic", made(Message.fake, topic=5)),
    ("queue", made(Message.fake, queue="0")),
    ("offset", made(Message.fake, offset=-1)),
    ("tag", made(Message.fake, tag=5)),
    ("keys", made(Message.fake, keys=[5])),
    ("properties", made(Message.fake, properties=[5])),
    ("property", made(Message.fake, properties={"a": 5})),
    ("attempt", made(Message.fake, attempt=0)),
    ("group", made(Message.fake, group=5)),
    ("codec", made(Message.fake, codec=5)),
    ("sent_at", made(Message.fake, sent_at=0)),
    ("topic", made(Message.fake, topic="\ud800")),
    ("offset", made(Message.fake, offset=2**40)),
    ("monitor", lambda: app(monitor=5)),
    ("monitor", lambda: app(monitor="a:b")),
    ("clock", lambda: app(clock=5)),
    ("commit_every", lambda: app(commit_every=float("nan"))),
    ("producer options: delivery_timeout", lambda: Producer(NOWHERE, delivery_timeout=float("inf"))),
    ("timeout", lambda: Admin(NOWHERE, timeout=-1)),
    ("timeout", lambda: Admin(NOWHERE, timeout=float("inf"))),
    ("timeout", lambda: Admin(NOWHERE, timeout=True)),
    ("tls", lambda: Admin(NOWHERE, tls=True)),  # type: ignore[arg-type]
    ("credentials", lambda: Admin(NOWHERE, credentials="hush")),  # type: ignore[arg-type]
    ("max", made(Backoff, max=float("inf"))),
    ("suspend", made(HoldQueue, suspend=-1)),
    ("at_broker", made(Park, at_broker="no")),
    ("ca", made(TlsOptions, ca=5)),
    ("insecure_skip_verify", made(TlsOptions, insecure_skip_verify="false")),
    ("offset", made(AtOffset, offset="5")),
    ("when", made(AtTime, when=float("nan"))),
    ("handled", lambda: assert_in_order(5)),  # type: ignore[arg-type]
    ("handled", lambda: assert_in_order([("k", 1, 2)])),  # type: ignore[list-item]
    ("options", lambda: EmbeddedBroker("data")),  # type: ignore[arg-type]
    ("app", lambda: TestApp("bill:app")),  # type: ignore[arg-type]
]


def refused(call: Call, argument: str) -> None:
    """The error begins with the argument. A broker that refuses it has not named it for the user's program."""
    with pytest.raises((UsageError, CodecError)) as found:
        call()
    assert re.match(rf"{re.escape(argument)}(?!\w)", str(found.value)), found.value


@pytest.mark.parametrize(("argument", "call"), WITHOUT_BROKER, ids=[name for name, _ in WITHOUT_BROKER])
def test_a_wrong_type_is_refused_by_name(argument: str, call: Call) -> None:
    refused(call, argument)


class Foreign:
    """A value of a type that no argument takes, with a long text."""

    def __repr__(self) -> str:
        return "foreign " * 10_000


FREE = {("reset_offsets", "to"), ("create_topic", "ordered"), ("ensure_topic", "ordered")}
"""Tested above; their errors are about values."""
VALID: dict[str, Any] = {
    "group": "g", "name": "plain", "topic": "plain", "key": "k", "owner": "o", "offset": 0, "when": 0, "to": "first",
    "writable": True, "message_id": "0", "offset_id": "0" * 32, "messages": [], "groups": [], "timeout": 0, "limit": 1,
}  # fmt: skip


@pytest.mark.parametrize("kind", [Admin, ParkedAdmin, PullConsumer])
def test_every_argument_of_every_call_is_checked(address: str, kind: Any) -> None:
    """By their signatures, so that a new call is tried too. The error is short, whatever the value's `repr` is."""
    tried = 0
    with kind(address, **({"group": "g"} if kind is PullConsumer else {})) as client:
        with PullConsumer(address, group="g") as reader:
            queue = reader.queues("plain")[0]
        for name, call in inspect.getmembers(client, inspect.ismethod):
            if name.startswith("_"):
                continue
            parameters = inspect.signature(call).parameters
            for wrong in parameters:
                if (name, wrong) in FREE or parameters[wrong].annotation is bool:
                    continue
                given = {each: VALID.get(each, queue) for each, one in parameters.items() if one.default is one.empty}
                with pytest.raises((UsageError, CodecError)) as found:
                    call(**given | {wrong: Foreign()})
                first = "lane" if kind is ParkedAdmin and wrong in ("through", "limit") else _SAID.get(wrong, wrong)
                assert re.match(rf"{first}(?!\w)", str(found.value)), (name, wrong, str(found.value)[:200])
                assert len(str(found.value)) < 300
                tried += 1
    assert tried >= 4


_SAID = {"name": "topic"}
"""What an error calls an argument with another name."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("orders", ordered=True)
            admin.create_topic("plain")
        yield broker.address


def test_a_producer_refuses_by_name_and_takes_a_list_of_servers(address: str) -> None:
    with Producer([address]) as producer:
        send: Any = producer.send
        for argument, call in (
            ("topic", lambda: send(5, {}, key="k")),
            ("topic", lambda: send(["plain"], {}, key="k")),
            ("topic", lambda: producer.submit(["plain"], {}, key="k")),  # type: ignore[arg-type]
            ("topic", lambda: producer.send_many(5, [("k", 1)])),  # type: ignore[arg-type]
            ("topic", lambda: producer.drop(5, key="k")),  # type: ignore[arg-type]
            ("topic", lambda: producer.frozen_keys(5)),  # type: ignore[arg-type]
            ("topic", lambda: producer.batch(5)),  # type: ignore[arg-type]
            ("tag", lambda: send("plain", {}, key="k", tag="")),
            ("keys", lambda: send("plain", {}, key="k", keys="a\x01")),
            ("key", lambda: send("orders", {}, key=1.5)),
            ("key", lambda: producer.drop("plain", key=None)),  # type: ignore[arg-type]
            ("tag", lambda: send("plain", {}, key="k", tag=5)),
            ("keys", lambda: send("plain", {}, key="k", keys=5)),
            ("properties", lambda: send("plain", {}, key="k", properties="x")),
            ("property", lambda: send("plain", {}, key="k", properties={"a": 5})),
            ("delay_level", lambda: send("plain", {}, key="k", delay_level="1")),
            ("selector", lambda: send("plain", {}, key="k", selector=5)),
            ("queue", lambda: send("plain", {}, key="k", queue="x")),
            ("cannot encode object", lambda: send("plain", object(), key="k")),
            ("Outgoing", lambda: send("plain", Outgoing({}), key="k")),
            ("Outgoing", lambda: producer.send_many("plain", [("k", Outgoing({}))])),
            ("the messages of send_many", lambda: producer.send_many("plain", 5)),  # type: ignore[arg-type]
            ("message 0 of send_many", lambda: producer.send_many("plain", [5])),  # type: ignore[list-item]
            ("timeout", lambda: Producer(address).close("x")),  # type: ignore[arg-type]
        ):
            refused(call, argument)
        with pytest.raises(MessageTooLarge, match="and key takes 40014 of them: shorten it"):
            producer.send("orders", {}, key="k" * 40_000)
        with pytest.raises(MissingKey, match="key="):
            producer.send("orders", {})
        with pytest.raises(MissingKey, match="key="):
            producer.send_many("orders", [(None, {})])
        assert producer.send("orders", {}, key="k").offset == 0


def test_a_consumer_refuses_by_name_and_its_message_still_waits(address: str) -> None:
    with Producer(address) as producer:
        producer.send("plain", 1, key="k")
    with Consumer(address, group="g", topics="plain") as found:
        reading: Any = found
        message = found.poll(timeout=30)
        for argument, call in (
            ("timeout", lambda: reading.poll("1")),
            ("timeout", lambda: reading.poll(float("inf"))),
            ("message", lambda: reading.done([message])),
            ("message", lambda: reading.retry({})),
            ("why", lambda: reading.dead(message, 5)),
        ):
            refused(call, argument)
        assert message is not None
        assert found.done(message)


def test_administration_refuses_by_name(address: str) -> None:
    with Admin(address) as found, ParkedAdmin(address) as parked:
        admin: Any = found
        for argument, call in (
            ("topic", lambda: admin.create_topic(5)),
            ("queues", lambda: admin.create_topic("t", queues="8")),
            ("ordered", lambda: admin.create_topic("t", ordered="yes")),
            ("queues", lambda: admin.ensure_topic("t", queues=1.5)),
            ("topic", lambda: admin.delete_topic(5)),
            ("topic", lambda: admin.describe_topic(5)),
            ("group", lambda: admin.describe_group(5)),
            ("to", lambda: admin.reset_offsets("g", "plain", to="somewhere")),
            ("group", lambda: admin.reset_offsets(5, "plain", to="first")),
            ("key", lambda: admin.find_key("plain", 1.5)),
            ("limit", lambda: admin.find_key("plain", "k", limit="x")),
            ("message_id", lambda: admin.find_id("plain", 5)),
            ("offset_id", lambda: admin.view(5)),
            ("queue", lambda: admin.min_offset("x")),
            ("group", lambda: admin.locks(5)),
            ("group", lambda: parked.lanes(group=5)),  # type: ignore[arg-type]
            ("topic", lambda: parked.lanes(topic=5)),  # type: ignore[arg-type]
            ("key", lambda: parked.lanes(key=1.5)),  # type: ignore[arg-type]
            ("lane", lambda: parked.messages("order-1")),  # type: ignore[arg-type]
            ("lane", lambda: parked.redrive("order-1")),  # type: ignore[arg-type]
            ("lane", lambda: parked.discard("order-1", 5)),  # type: ignore[arg-type]
        ):
            refused(call, argument)
