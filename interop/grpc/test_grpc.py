"""What RocketMQ's official gRPC clients can rely on. Every case ends with the verdict of the checker."""

import signal
import time

from tests.certificates import Authority

from interop.grpc.conftest import Scene
from interop.grpc.programs import ClientRun, by_key, messages
from interop.ports import eventually
from lanemq import App, Message
from lanemq.client.admin.parked import ParkedAdmin

KEYS, EACH = ["a", "b", "c", "d", "e"], 10
IN_ORDER = {key: list(range(EACH)) for key in KEYS}
TAKE_OVER_SECONDS = 2.5
"""0.8 s for a new connection, and the time of a busy machine."""


def got(run: ClientRun) -> list[str]:
    found: list[str] = run.column("got")
    return found


def finished(*runs: ClientRun) -> list[str]:
    return [body for run in runs for body in run.column("done")]


def test_push(scene: Scene) -> None:
    consumer = scene.client("push")
    scene.client("send").send(messages(KEYS, EACH))
    consumer.wait(lambda run: len(finished(run)) == len(KEYS) * EACH, "everything processed")
    assert by_key(got(consumer)) == IN_ORDER
    scene.all_done(len(KEYS) * EACH)
    scene.verdict()


def test_simple(scene: Scene) -> None:
    scene.client("send").send(messages(KEYS, EACH))
    consumer = scene.client("simple")
    consumer.wait(lambda run: len(finished(run)) == len(KEYS) * EACH, "everything processed")
    assert by_key(got(consumer)) == IN_ORDER
    scene.all_done(len(KEYS) * EACH)
    scene.verdict()


def test_a_simple_consumer_gets_the_run_again_from_what_it_did_not_acknowledge(scene: Scene) -> None:
    scene.client("send").send(messages(["k"], 3))
    consumer = scene.client("simple", ignore="k:0", invisible=10, batch=3)
    consumer.wait(lambda run: len(finished(run)) == 5, "the run twice, and its first message once ignored")
    assert got(consumer) == ["k:0", "k:1", "k:2"] * 2
    assert [line["attempt"] for line in consumer.lines if line.get("got") == "k:0"] == [1, 2]
    scene.verdict()


def test_a_failure_holds_its_key_only(scene: Scene) -> None:
    scene.client("send").send(messages(KEYS, EACH))
    consumer = scene.client("push", fail="b:4")
    consumer.wait(lambda run: len(finished(run)) == len(KEYS) * EACH, "everything processed")
    assert by_key(finished(consumer)) == IN_ORDER
    assert by_key(got(consumer))["b"] == [0, 1, 2, 3, 4, *range(4, EACH)]
    scene.verdict()


def test_a_key_is_parked_and_redriven(scene: Scene) -> None:
    scene.client("send").send(messages(["good", "bad"], 3))
    consumer = scene.client("push", fail="bad:1", fails="always")
    with ParkedAdmin(scene.server) as lanes:
        parked = eventually(lambda: lanes.lanes(scene.group), 40, "the key is parked")
    consumer.wait(lambda run: by_key(finished(run)).get("good") == [0, 1, 2], "the other key processed")
    assert [lane.key for lane in parked] == ["bad"]
    attempts = [line["attempt"] for line in consumer.lines if line.get("got") == "bad:1"]
    assert attempts == [1, 2, 3, 4]
    consumer.stop()
    with ParkedAdmin(scene.server) as lanes:
        assert lanes.redrive(parked[0])
    healthy = scene.client("push")
    healthy.wait(lambda run: finished(run) == ["bad:1", "bad:2"], "the parked messages processed")
    scene.verdict()


def test_two_members(scene: Scene) -> None:
    runs = [scene.client("push", seconds=0.3) for _ in range(2)]  # a client asks for work a second after its start
    scene.client("send").send(messages(KEYS, EACH))
    eventually(lambda: len(finished(*runs)) == len(KEYS) * EACH, 60, "everything processed")
    assert all(got(run) for run in runs), "both have work"
    for key, numbers in IN_ORDER.items():
        turns = sorted((line["at"], line["got"]) for run in runs for line in run.lines if "got" in line)
        assert by_key([body for _, body in turns])[key] == numbers
    scene.verdict()


def test_a_killed_consumer_is_replaced_at_once(scene: Scene) -> None:
    scene.client("send").send(messages(["k"], 3))
    first = scene.client("push", seconds=60)
    first.wait(lambda run: got(run) == ["k:0"], "the first message there")
    second = scene.client("push")
    first.kill()
    killed = time.time()
    second.wait(lambda run: finished(run) == ["k:0", "k:1", "k:2"], "all messages at the other consumer")
    taken = next(line["at"] for line in second.lines if line.get("got") == "k:0")
    assert taken - killed < TAKE_OVER_SECONDS
    scene.verdict()


def test_a_frozen_consumer_is_replaced_and_decides_nothing_any_more(scene: Scene) -> None:
    scene.client("send").send(messages(["k"], 3))
    first = scene.client("push", seconds=1)
    first.wait(lambda run: got(run) == ["k:0"], "the first message there")
    first.send_signal(signal.SIGSTOP)
    second = scene.client("push", seconds=1)
    second.wait(lambda run: got(run)[:1] == ["k:0"], "the message at the other consumer", 20)
    first.send_signal(signal.SIGCONT)
    eventually(lambda: {"k:0", "k:1", "k:2"} <= {*finished(second), *finished(first)}, 40, "everything processed")
    first_of = [line["got"] for run in (first, second) for line in run.lines if "got" in line]
    assert first_of.count("k:1") == 1, "the late acknowledgement freed nothing"
    scene.all_done(3)
    scene.verdict()


def test_a_front_that_is_restarted(scene: Scene) -> None:
    sender, consumer = scene.client("send"), scene.client("push")
    sender.send(messages(KEYS, 5))
    consumer.wait(lambda run: len(set(finished(run))) == 5 * len(KEYS), "the first half processed")
    scene.front.stop()
    scene.front.start()
    scene.client("send").send(messages(KEYS, 5, first=5))
    consumer.wait(lambda run: len(set(finished(run))) == 10 * len(KEYS), "the second half processed")
    assert by_key(finished(consumer)) == IN_ORDER
    scene.verdict()


def test_a_front_that_is_killed(scene: Scene) -> None:
    """Messages that were acknowledged within the last report come again; nothing is lost."""
    sender, consumer = scene.client("send"), scene.client("push", seconds=0.05)
    sender.send(messages(KEYS, EACH))
    consumer.wait(lambda run: len(finished(run)) >= 10, "some processed")
    scene.front.stop(signal.SIGKILL)
    scene.front.start()
    consumer.wait(lambda run: len(set(finished(run))) == len(KEYS) * EACH, "everything processed")
    for key, numbers in by_key(finished(consumer)).items():
        assert list(dict.fromkeys(numbers)) == IN_ORDER[key]
    scene.verdict()


def test_beside_a_lanemq_member(scene: Scene) -> None:
    seen: list[str] = []
    app = App(scene.server, group=scene.group, history=scene.history)

    @app.ordered(scene.topic)
    def take(message: Message) -> None:
        seen.append(message.body.decode())

    with app:
        consumer = scene.client("push")
        eventually(lambda: len(scene.admin.describe_group(scene.group).members) == 2, 30, "both members")
        time.sleep(1)  # the queues are divided
        scene.client("send").send(messages([f"k{number}" for number in range(20)], EACH))
        eventually(lambda: len({*seen, *finished(consumer)}) == 20 * EACH, 60, "everything processed")
        assert seen, "the LaneMQ member has work"
        assert finished(consumer), "and so has the other"
    for bodies in (seen, finished(consumer)):
        assert all(numbers == sorted(numbers) for numbers in by_key(bodies).values())
    scene.verdict()


USERS = """
[[user]]
access_key = "billing"
secret_key = "bill-secret"
topics = {{ "{topic}" = "PUB|SUB" }}
groups = {{ "{group}" = "SUB" }}
"""


def test_tls_and_users(scene: Scene) -> None:
    file = scene.folder / "users.toml"
    file.write_text(USERS.format(topic=scene.topic, group=scene.group))
    authority = Authority(scene.folder)
    identity = authority.issue("front")
    scene.environment["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = str(authority.ca)  # Java and Go trust any certificate
    protected = ["--cert", str(identity.cert), "--key", str(identity.key)] if scene.has_tls else []
    scene.front.stop()
    scene.front = scene.new_front("--users", str(file), *protected).start()
    as_user = {"user": "billing", "secret": "bill-secret", **({"tls": 1} if scene.has_tls else {})}
    consumer = scene.client(scene.consuming, **as_user)
    scene.client("send", **as_user).send(messages(KEYS, EACH))
    consumer.wait(lambda run: len(finished(run)) == len(KEYS) * EACH, "everything processed")
    assert by_key(got(consumer)) == IN_ORDER
    scene.verdict()


def test_a_topic_without_order(scene: Scene) -> None:
    scene.topic += "-normal"
    scene.admin.create_topic(scene.topic, 4)
    bodies = [f"k:{number}" for number in range(20)]
    scene.client("send").send([{"body": body} for body in bodies])
    consumer = scene.client("push", fail="k:3")
    consumer.wait(lambda run: set(finished(run)) == set(bodies), "everything processed, the failed one again", 60)
    assert got(consumer).count("k:3") == 2
    scene.verdict()
