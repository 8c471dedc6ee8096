"""What a client in another language can do with a broker; the cases are the rows of the table in the documents."""

from collections import defaultdict
from collections.abc import Sequence

from interop.languages.bench import Bench
from interop.ports import eventually
from interop.programs import Run
from lanemq import App, Message

KEYS, EACH = 5, 10
BODIES = [f"k{key}:{number}" for number in range(EACH) for key in range(KEYS)]
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


def by_key(bodies: Sequence[str]) -> dict[str, list[int]]:
    found = defaultdict[str, list[int]](list)
    for body in bodies:
        key, _, number = body.partition(":")
        found[key].append(int(number))
    return dict(found)


IN_ORDER = by_key(BODIES)


def messages(bodies: Sequence[str], **more: object) -> list[dict[str, object]]:
    return [{"key": body.split(":")[0], "body": body, **more} for body in bodies]


def test_ordered_send(stage: Bench) -> None:
    stage.lacking("rust", "it chooses the queue itself")
    stage.lacking("node", "it spreads the keys whose queue is 0: `queueIds[0] || ''` in its selectOneMessageQueue")
    topic = stage.topic()
    sent = stage.send(topic, messages(BODIES))
    assert [receipt["body"] for receipt in sent] == BODIES
    stored = stage.stored(topic, len(BODIES))
    for queue in stored.values():
        for key, numbers in by_key(queue).items():
            assert numbers == IN_ORDER[key], "all of a key in one queue, in order"
    assert sum(len(by_key(queue)) for queue in stored.values()) == KEYS


def test_send(stage: Bench) -> None:
    topic = stage.topic(queues=1)
    stage.send(topic, messages(BODIES[:10]))
    assert stage.stored(topic, 10)[0] == BODIES[:10]


def test_ordered_consumption(stage: Bench) -> None:
    topic, group = stage.topic(), stage.name("g")
    stage.lane_sends(topic, BODIES)
    run = stage.consume(topic, group, orderly=stage.program.orderly)
    run.wait(lambda _: len(run.bodies()) >= len(BODIES), "all messages received")
    assert by_key(run.bodies()) == IN_ORDER


def test_concurrent_consumption(stage: Bench) -> None:
    topic, group = stage.topic(), stage.name("g")
    stage.lane_sends(topic, BODIES)
    run = stage.consume(topic, group)
    run.wait(lambda _: len(run.bodies()) >= len(BODIES), "all messages received")
    assert sorted(run.bodies()) == sorted(BODIES)


def test_retry_in_order(stage: Bench) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    stage.lane_sends(topic, ["k:0", "k:1", "k:2"])
    run = stage.consume(topic, group, orderly=True, fail=["k:1"])
    run.wait(lambda _: len(run.bodies()) >= 4, "all messages and one repeat received")
    assert run.bodies() == ["k:0", "k:1", "k:1", "k:2"]


def test_retry_later(stage: Bench) -> None:
    """A concurrent listener that fails gets the message again, from the retry topic."""
    topic, group = stage.topic(queues=1), stage.name("g")
    stage.lane_sends(topic, ["k:0"])
    run = stage.consume(topic, group, fail=["k:0"])
    run.wait(lambda _: len(run.bodies()) >= 2, "the repeat received")
    assert run.received()[-1]["attempts"] >= 1


def test_tags(stage: Bench) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    stage.lane_sends(topic, ["k:0", "k:1"], tag="red")
    stage.lane_sends(topic, ["k:2"], tag="blue")
    stage.send(topic, messages(["k:3"], tag="red"))
    run = stage.consume(topic, group, tags="red")
    run.wait(lambda _: len(run.bodies()) >= 3, "the red messages received")
    assert sorted(run.bodies()) == ["k:0", "k:1", "k:3"]


def test_delayed_messages(stage: Bench) -> None:
    stage.lacking("rust", "it sends every message as a batch, and brokers refuse delayed messages in a batch")
    topic, group = stage.topic(queues=1), stage.name("g")
    run = stage.consume(topic, group)
    stage.send(topic, messages(["late:0"], delay=2))
    stage.lane_sends(topic, ["early:0"])
    run.wait(lambda _: len(run.bodies()) >= 2, "both messages received")
    assert sorted(run.bodies()) == ["early:0", "late:0"]


def test_two_members(stage: Bench) -> None:
    """They share the queues; each message goes to one of them."""
    topic, group = stage.topic(), stage.name("g")
    first, second = (stage.consume(topic, group, orderly=stage.program.orderly) for _ in range(2))
    eventually(lambda: stage.members(group) == 2, 60, "two members in the group")
    stage.lane_sends(topic, BODIES)
    eventually(lambda: len({*first.bodies(), *second.bodies()}) == len(BODIES), 90, "all messages received")
    for run in (first, second):
        assert all(numbers == sorted(numbers) for numbers in by_key(run.bodies()).values())


def test_beside_a_lanemq_member(stage: Bench) -> None:
    """One ordered group with members of both kinds: each key in order, and nothing is missing."""
    stage.lacking("node rust", "it takes no locks")
    topic, group = stage.topic(), stage.name("g")
    seen: list[str] = []
    app = App(stage.address, group=group)

    @app.ordered(topic)
    def take(message: Message) -> None:
        seen.append(message.body.decode())

    with app:
        run = stage.consume(topic, group, orderly=True)
        eventually(lambda: stage.members(group) == 2, 60, "both members")
        stage.lane_sends(topic, BODIES)
        eventually(lambda: len(set(seen) | set(run.bodies())) == len(BODIES), 90, "all messages received")
    for bodies in (seen, run.bodies()):
        assert all(numbers == sorted(numbers) for numbers in by_key(bodies).values())


def test_broadcasting(stage: Bench) -> None:
    topic, group = stage.topic(), stage.name("g")
    runs = [stage.consume(topic, group, broadcast=True) for _ in range(2)]
    # Not by client ids: clients that broadcast on one machine share one, unless the program sets it.
    eventually(lambda: len(stage.connections(group)) >= 2, 60, "two members")
    eventually(lambda: _flows(stage, topic, runs), 60, "both members receive")
    stage.lane_sends(topic, BODIES)
    for run in runs:
        run.wait(lambda _, run=run: set(BODIES) <= set(run.bodies()), "all messages received")


def _flows(stage: Bench, topic: str, runs: Sequence[Run]) -> bool:
    """Send another probe; whether both have received one. Their positions start at the end of the queues."""
    stage.lane_sends(topic, [f"probe{number}:0" for number in range(8)])
    return all(run.bodies() for run in runs)


def test_continues_after_a_restart(stage: Bench) -> None:
    """What the group has committed does not come again."""
    topic, group = stage.topic(), stage.name("g")
    stage.lane_sends(topic, BODIES)
    first = stage.consume(topic, group, orderly=stage.program.orderly)
    first.wait(lambda _: len(first.bodies()) >= len(BODIES), "all messages received")
    if stage.client == "rust":
        # It commits every few seconds, and not when it ends.
        eventually(lambda: stage.committed(topic, group) == len(BODIES), 60, "all offsets committed")
    first.stop()
    stage.lane_sends(topic, [f"k{key}:{EACH}" for key in range(KEYS)])
    second = stage.consume(topic, group, orderly=stage.program.orderly)
    second.wait(lambda _: len(second.bodies()) >= KEYS, "the new messages received")
    assert sorted(second.bodies()) == [f"k{key}:{EACH}" for key in range(KEYS)]


def test_new_group_on_empty_queues(stage: Bench) -> None:
    """A consumer that starts "from last" on an empty topic gets what is sent while it starts."""
    topic, group = stage.topic(), stage.name("g")
    run = stage.consume(topic, group, from_last=True)
    stage.lane_sends(topic, BODIES)
    run.wait(lambda _: len(set(run.bodies())) >= len(BODIES), "all messages received")


def test_language_and_version_are_shown(stage: Bench) -> None:
    topic, group = stage.topic(), stage.name("g")
    stage.consume(topic, group)
    shown = eventually(lambda: stage.connections(group), 60, "the member in the list of connections")
    assert shown[0]["language"] == stage.program.language
    assert shown[0]["version"] > 0


def test_message_trace(stage: Bench) -> None:
    topic = stage.topic()
    stage.send(topic, messages(["k:0"]), trace=True)
    eventually(lambda: b"Pub" in stage.found_by_key(TRACE_TOPIC, "k:0"), 30, "the trace of a message")


def test_request_and_reply(stage: Bench) -> None:
    topic, group = stage.topic(), stage.name("g")
    stage.consume(topic, group, do="reply")
    with stage.skipping():
        lines = stage.run(do="request", topic=topic, body="how are you?").finished()
    assert lines == [{"replied": "re: how are you?"}]


def test_consume_directly(stage: Bench) -> None:
    stage.lacking("cpp node rust", "it ignores this request")
    topic, group = stage.topic(queues=1), stage.name("g")
    (sent,) = stage.send(topic, messages(["k:0"]))
    run = stage.consume(topic, group)
    run.wait(lambda _: len(run.bodies()) >= 1, "the message received")
    client = stage.connections(group)[0]["clientId"]
    assert stage.consume_directly(group, client, sent["id"]) == "CR_SUCCESS"
    assert run.bodies() == ["k:0", "k:0"]


def test_client_rebalance_switched_off(stage: Bench) -> None:
    """The broker assigns no queues. Orderly members share them by themselves; Java's concurrent ones would get none."""
    stage.lacking("go cpp node rust", "it has no such setting")
    topic, group = stage.topic(), stage.name("g")
    stage.lane_sends(topic, BODIES)
    run = stage.consume(topic, group, orderly=True, client_rebalance_off=True)
    run.wait(lambda _: len(run.bodies()) >= len(BODIES), "all messages received")
    assert sorted(run.bodies()) == sorted(BODIES)
