"""After a fork, producers, administration and histories start anew in the child; consumers refuse there.

Each case is a program of its own: the process of the tests has too many threads to be forked.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.topic_reader import TopicReader
from lanemq.testing.embedded import EmbeddedBroker

pytestmark = pytest.mark.slow
SECONDS = 100
BEGIN = """
import asyncio, json, multiprocessing, os, sys
from lanemq import *
from lanemq import forking
address, folder = sys.argv[1:]

def in_child(work):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except LaneError as error:
            print("child:", type(error).__name__, error)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return child

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as embedded:
        with Admin(embedded.address) as admin:
            for topic in (
                "orders",
                "pooled",
                "awaited",
                "consumed",
                "recorded",
                "naive",
                "ended",
                "hooked",
                "overtaken",
            ):
                admin.create_topic(topic, 2, ordered=True)
        yield embedded


def run(broker: EmbeddedBroker, program: str, folder: Path, before: str = "") -> str:
    words = [sys.executable, "-W", "ignore", "-c", before + BEGIN + program, broker.address, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stored(broker: EmbeddedBroker, topic: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    with TopicReader(broker.address, topic) as reader:
        for queue in reader.queues:
            for message in reader.read(queue, *reader.bounds(queue)):
                found.setdefault(message.key or "", []).append(message.body.decode())
    return found


def producers(broker: EmbeddedBroker, topic: str) -> set[str]:
    with TopicReader(broker.address, topic) as reader:
        messages = [each for queue in reader.queues for each in reader.read(queue, *reader.bounds(queue))]
    return {message.stamp.producer for message in messages if message.stamp is not None}


def test_a_producer_starts_anew_in_every_child_and_the_parent_goes_on(broker: EmbeddedBroker, tmp_path: Path) -> None:
    program = """
producer = Producer(address)
producer.send("orders", -1, key="parent")
waiting = [producer.submit("orders", number, key="parent") for number in range(300)]

def work(name):
    try:
        waiting[-1].result(30)
    except UsageError as error:
        os.write(1, f"{error}\\n".encode())  # one write: the children print at once
    for number in range(100):
        producer.submit("orders", number, key=name)
    producer.flush()
    assert producer.frozen_keys() == []
    producer.close()

children = [in_child(lambda: work(f"child-{number}")) for number in range(3)]
waiting += [producer.submit("orders", number, key="parent") for number in range(300, 600)]
offsets = [future.result(60).offset for future in waiting]
assert offsets == sorted(offsets)
assert [ended(child) for child in children] == [0, 0, 0]
producer.close()
"""
    printed = run(broker, program, tmp_path).splitlines()
    found = stored(broker, "orders")
    assert found.pop("parent") == [str(number) for number in range(-1, 600)]
    assert found == {f"child-{child}": [str(number) for number in range(100)] for child in range(3)}
    assert len(producers(broker, "orders")) == 4
    assert [line for line in printed if "was submitted before a fork" not in line] == []


def test_without_the_hook_a_child_gets_no_receipt(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The negative control: the child writes into the parent's connection, and the parent reads the reply."""
    program = """
producer = Producer(address, timeout=2.0)
producer.send("naive", 0, key="parent")
forking._objects.clear()
assert ended(in_child(lambda: producer.send("naive", 1, key="child"))) == 1
os._exit(0)
"""
    assert "RequestTimedOut" in run(broker, program, tmp_path)


EARLY_HOOK = """
import os

made = {}

def hook():
    if made:
        made["future"] = made["producer"].submit(made["topic"], "child", key="k")

os.register_at_fork(after_in_child=hook)
"""
"""Runs before the hook of LaneMQ, as a finalizer may. A log handler that sends is enough."""


AROUND_A_FORK = """
producer = Producer(address, history=folder)
producer.send(topic, 0, key="k")
made.update(producer=producer, topic=topic)
child = in_child(lambda: (made["future"].result(30), producer.close()))
made.clear()
ended(child)
assert [producer.send(topic, number, key="k").stored.name for number in (1, 2)] == ["DURABLE", "DURABLE"]
producer.close()
"""


def test_a_producer_knows_of_a_fork_before_a_hook_of_the_program_uses_it(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    run(broker, 'topic = "hooked"' + AROUND_A_FORK, tmp_path, before=EARLY_HOOK)
    assert stored(broker, "hooked") == {"k": ["0", '"child"', "1", "2"]}
    assert len(producers(broker, "hooked")) == 2
    for file in tmp_path.glob("*.jsonl"):
        numbers = [json.loads(line)["n"] for line in file.read_text().splitlines()]
        assert numbers == list(range(len(numbers))), "the child has a history of its own"


def test_without_a_look_at_the_fork_a_message_of_the_parent_is_lost(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The negative control: the child's message has the number of the parent's next one, which seems to be a repeat."""
    program = 'topic = "overtaken"; forking.tell_now.__code__ = (lambda: None).__code__' + AROUND_A_FORK
    run(broker, program, tmp_path, before=EARLY_HOOK)
    assert stored(broker, "overtaken") == {"k": ["0", '"child"', "2"]}


def test_the_workers_of_a_pool_share_a_producer_made_before_them(broker: EmbeddedBroker, tmp_path: Path) -> None:
    program = """
producer = Producer(address)
producer.send("pooled", 0, key="parent")

def work(number):
    return producer.send("pooled", number, key=f"k{number}").key

with multiprocessing.get_context("fork").Pool(3) as pool:
    print(json.dumps(pool.map(work, range(30), chunksize=1)))
producer.send("pooled", 1, key="parent")
producer.close()
"""
    assert json.loads(run(broker, program, tmp_path)) == [f"k{number}" for number in range(30)]
    found = stored(broker, "pooled")
    assert found.pop("parent") == ["0", "1"]
    assert found == {f"k{number}": [str(number)] for number in range(30)}


def test_a_process_of_multiprocessing_sends_what_it_accepted_before_it_ends(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """A process of a fork server imports this file before `multiprocessing` says that it is a child."""
    program = """
made_at_import = Producer(address)

def work(how):
    made_in_process = Producer(address)
    for number in range(5):
        made_at_import.submit("ended", number, key=f"{how}-import")
        made_in_process.submit("ended", number, key=f"{how}-process")

if __name__ == "__main__":
    for how in ("fork", "spawn", "forkserver"):
        process = multiprocessing.get_context(how).Process(target=work, args=(how,))
        process.start()
        process.join()
        assert process.exitcode == 0
"""
    file = tmp_path / "program.py"
    file.write_text(BEGIN + program)
    subprocess.run([sys.executable, "-W", "ignore", file, broker.address, tmp_path], timeout=SECONDS, check=True)
    kinds = [f"{how}-{where}" for how in ("fork", "spawn", "forkserver") for where in ("import", "process")]
    assert stored(broker, "ended") == {kind: list("01234") for kind in kinds}


def test_an_async_producer_starts_anew_on_the_childs_event_loop(broker: EmbeddedBroker, tmp_path: Path) -> None:
    program = """
async def send(producer, key, count):
    for number in range(count):
        await producer.send("awaited", number, key=key)

async def main():
    producer = AsyncProducer(address)
    await send(producer, "parent", 3)
    child = in_child(lambda: asyncio.run(send(producer, "child", 5)))
    await send(producer, "parent", 2)
    assert ended(child) == 0
    await producer.close()

asyncio.run(main())
"""
    run(broker, program, tmp_path)
    assert stored(broker, "awaited") == {"parent": ["0", "1", "2", "0", "1"], "child": list("01234")}


def test_a_consumer_goes_on_in_the_parent_and_refuses_in_the_child(broker: EmbeddedBroker, tmp_path: Path) -> None:
    program = """
with Producer(address) as producer:
    producer.send_many("consumed", [("k", number) for number in range(20)])
consumer = Consumer(address, group="forked", topics="consumed")
seen = []
with consumer:
    seen.append(consumer.poll(60))
    consumer.done(seen[0])

    def work():
        consumer.close()
        consumer.poll(60)

    assert ended(in_child(work)) == 1
    while len(seen) < 20:
        seen.append(consumer.poll(60))
        assert consumer.done(seen[-1])
print([message.value() for message in seen] == list(range(20)))

app = App(address, group="forked-app")
app.ordered("consumed")(lambda event: None)
with app:
    assert ended(in_child(lambda: (app.stop(), app.snapshot()))) == 1
    print(len(app.snapshot().queues) >= 2)
"""
    lines = run(broker, program, tmp_path).splitlines()
    refusal = (
        "child: UsageError this consumer was started before a fork and continues in the parent: make one in the child"
    )
    assert lines == [refusal, "True", refusal, "True"]


def test_administration_uses_connections_of_its_own_in_the_child(broker: EmbeddedBroker, tmp_path: Path) -> None:
    program = """
admin = Admin(address)
names = admin.topics()
assert admin.describe_topic("orders").ordered

def work():
    for _ in range(50):
        assert admin.topics() == names
        assert admin.describe_topic("orders").topic == "orders"

children = [in_child(work) for _ in range(2)]
work()
assert [ended(child) for child in children] == [0, 0]
"""
    run(broker, program, tmp_path)


def test_a_history_goes_on_in_a_file_of_the_child(broker: EmbeddedBroker, tmp_path: Path) -> None:
    program = """
producer = Producer(address, history=folder)
producer.send("recorded", 0, key="parent")
child = in_child(lambda: (producer.send("recorded", 1, key="child"), producer.close()))
producer.send("recorded", 2, key="parent")
assert ended(child) == 0
producer.close()
"""
    run(broker, program, tmp_path)
    files = [[json.loads(line) for line in file.read_text().splitlines()] for file in tmp_path.glob("*.jsonl")]
    assert sorted(Counter(line["e"] for line in lines)["acked"] for lines in files) == [1, 2]
    for lines in files:
        assert [line["n"] for line in lines] == list(range(len(lines)))
        assert len({line["key"] for line in lines if "key" in line}) == 1


LEAVING = """
import signal
from lanemq.client.consumer.turns import forked

name = os.path.basename(folder)
with Producer(address, create=[name]) as producer:
    producer.send_many(name, [("k", number) for number in range(40)])
app = App(address, group=name)
parent, ends = os.getpid(), []

def leave(number):
    signal.alarm(PATIENCE)
    if number == 1:
        sys.exit(7)
    if number == 2:
        raise ValueError("in the child")

@app.ordered(name)
KIND on_event(event):
    os.write(1, f"{event} {os.getpid() == parent}\\n".encode())
    if event < len(ENDS):
        child = os.fork()
        if child == 0:
            return leave(event)
        ends.append(ended(child))
    if event == 39:
        app.stop()
"""
"""A handler that forks, and whose child leaves it in one of three ways."""


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_child_that_leaves_the_handler_that_forked_it_ends_and_runs_no_message(
    broker: EmbeddedBroker, tmp_path: Path, kind: str
) -> None:
    program = LEAVING.replace("PATIENCE", "60").replace("len(ENDS)", "3").replace("KIND", kind)
    *turns, ends = run(broker, program + "app.run()\nprint(ends)\n", tmp_path).splitlines()
    assert turns == [f"{number} True" for number in range(40)]
    assert ends == "[0, 7, 1]"


def test_without_the_hook_of_handlers_a_child_stays(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The negative control: the child is ended by its alarm."""
    mutant = "forking._objects.discard(forked._forked_worker)\n"
    program = LEAVING.replace("PATIENCE", "1").replace("len(ENDS)", "1").replace("KIND", "def")
    assert run(broker, program + mutant + "app.run()\nprint(ends)\n", tmp_path).endswith("[-14]\n")


TERMINATING = """
import time
from lanemq.client.consumer import signals

with Producer(address, create=["jobs"]) as producer:
    producer.send_many("jobs", [("k", number) for number in range(3)])
app = App(address, group=os.path.basename(folder))
ends = []

@app.ordered("jobs")
def on_job(event):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    child.terminate()
    child.join(PATIENCE)
    ends.append(child.exitcode)
    child.kill()
    child.join()
    if len(ends) == 3:
        app.stop()
"""


def test_sigterm_for_a_child_of_a_handler_ends_the_child_and_not_the_app(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    program = TERMINATING.replace("PATIENCE", "60") + "app.run()\nprint(ends)\n"
    assert run(broker, program, tmp_path) == "[-15, -15, -15]\n"


def test_without_the_hook_of_signals_a_child_cannot_be_terminated(broker: EmbeddedBroker, tmp_path: Path) -> None:
    mutant = "signals._LoopSignals.forked = lambda self: None\n"
    program = TERMINATING.replace("PATIENCE", "1") + mutant + "app.run()\nprint(ends[0])\n"
    assert run(broker, program, tmp_path) == "None\n"


def test_a_background_consumer_leaves_sigterm_of_a_child_alone(broker: EmbeddedBroker, tmp_path: Path) -> None:
    program = """
import signal
consumer = Consumer(address, group="terminated", topics="consumed")
with consumer:
    child = in_child(signal.pause)
    os.kill(child, signal.SIGTERM)
    print(ended(child))
"""
    assert run(broker, program, tmp_path) == "-15\n"
