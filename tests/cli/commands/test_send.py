"""`lanemq send`: what is stored, printed and refused."""

import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run

from lanemq.broker.config import BrokerOptions
from lanemq.cli.commands.send import Line, Sending, Stopped
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.topic_reader import TopicReader
from lanemq.client.receipt import Receipt
from lanemq.model.errors import LaneError, RequestTimedOut
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker

TOPICS = ("plain", "tabled", "filed", "keyed", "keyed-badly", "go-on", "go-on-json", "counted", "halfway")


@pytest.fixture(autouse=True, scope="module")
def _topics(broker: EmbeddedBroker) -> None:
    with Admin(broker.address) as admin:
        for name in TOPICS:
            admin.ensure_topic(name, 4)


def stored(broker: EmbeddedBroker, topic: str) -> list[tuple[str | None, bytes]]:
    """All messages of the topic, queue by queue."""
    with TopicReader(broker.address, topic) as reader:
        return [
            (message.key, message.body)
            for queue in reader.queues
            for message in reader.read(queue, *reader.bounds(queue))
        ]


def test_a_value_is_stored_and_its_offset_is_printed(run: Run, broker: EmbeddedBroker) -> None:
    result = run("send", "plain", "hello", "--key", "a", "--json")
    assert result.exit_code == 0, result.output
    (receipt,) = json.loads(result.stdout)
    assert receipt["topic"] == "plain"
    assert receipt["key"] == "a"
    assert receipt["stored"] == "durable"
    assert stored(broker, "plain") == [("a", b"hello")]


@pytest.mark.parametrize(("value", "warns"), [('{"id":1', True), ("[1", True), ('{"id":1}', False), ("hello {", False)])
def test_a_value_that_is_broken_json_is_sent_with_a_warning(run: Run, value: str, warns: bool) -> None:
    result = run("send", "tabled", "--key", "a", "--", value)
    assert result.exit_code == 0
    assert ("looks like JSON and is not" in result.stderr) is warns


def test_text_output_is_a_table(run: Run) -> None:
    result = run("send", "tabled", "hello", "--key", "a")
    assert result.exit_code == 0
    assert "offset" in result.stdout
    assert "durable" in result.stdout


def test_tag_and_properties_travel_with_the_message(run: Run, broker: EmbeddedBroker) -> None:
    assert run("send", "tagged", "x", "--tag", "paid", "-p", "shop=3", "-p", "note=a=b").exit_code == 0
    with TopicReader(broker.address, "tagged") as reader:
        (message,) = [m for queue in reader.queues for m in reader.read(queue, *reader.bounds(queue))]
    assert message.tag == "paid"
    assert message.properties["shop"] == "3"
    assert message.properties["note"] == "a=b"


def test_lines_of_a_file_keep_their_order(run: Run, broker: EmbeddedBroker, tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(3000)]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n\n")
    result = run("send", "filed", "--file", str(tmp_path / "lines.txt"), "--key", "one")
    assert result.exit_code == 0, result.output
    assert [body.decode() for _, body in stored(broker, "filed")] == lines
    assert "3000 messages in 1 queue" in result.stdout


def test_stdin_lines_may_bring_their_keys(run: Run, broker: EmbeddedBroker) -> None:
    result = run("send", "keyed", "--file", "-", "--key-separator", ":", stdin="a:1\nb:2\na:3:4\n")
    assert result.exit_code == 0, result.output
    found = stored(broker, "keyed")
    assert [body for key, body in found if key == "a"] == [b"1", b"3:4"]
    assert [body for key, body in found if key == "b"] == [b"2"]


def test_line_without_key_is_named(run: Run) -> None:
    result = run("send", "keyed-badly", "--file", "-", "--key-separator", ":", stdin="a:1\nnothing\n")
    assert result.exit_code == 2
    assert "line 2: the key is missing" in result.stderr


def test_a_bad_line_reports_what_is_stored_and_where_to_resume(run: Run, broker: EmbeddedBroker) -> None:
    """Sending the rest of the file from there stores every line once."""
    lines = ["a:1", "", "b:2", "nothing", "a:3"]
    result = run("send", "go-on", "--file", "-", "--key-separator", ":", stdin="\n".join(lines))
    assert "2 lines stored: resume from line 4" in result.stderr
    assert sorted(stored(broker, "go-on"), key=str) == [("a", b"1"), ("b", b"2")]


def test_a_bad_line_is_reported_in_json(run: Run) -> None:
    words = ("send", "go-on-json", "--file", "-", "--key-separator", ":", "--json")
    result = run(*words, stdin="a:1\n\nb:2\nnothing\n")
    assert result.exit_code == 2
    printed = json.loads(result.stdout)
    assert (printed["stored"], printed["go_on_from"], printed["stored_after"]) == (2, 4, [])
    assert "the key is missing" in printed["error"]
    assert [(each["number"], each["key"]) for each in printed["receipts"]] == [(1, "a"), (3, "b")]


class Slow(Future[Receipt]):
    """A future that is done only when it is waited for, so all messages are in flight at once."""

    def done(self) -> bool:
        return False


class Unreliable:
    """A producer that fails for one body."""

    def __init__(self, bad: bytes, error: LaneError, answer: Callable[[], "Future[Receipt]"] = Future) -> None:
        self._bad = bad
        self._error = error
        self._answer = answer

    def submit(self, topic: str, body: bytes, **more: object) -> "Future[Receipt]":
        future = self._answer()
        if body == self._bad:
            future.set_exception(self._error)
        else:
            future.set_result(Receipt(MessageQueue(topic, "b", 0), QueueOffset(0), "id"))
        return future


def test_lines_stored_after_a_failed_one_are_reported() -> None:
    """Other keys do not wait for it; repeating the rest of the file would store them twice."""
    producer: Any = Unreliable(b"2", RequestTimedOut("no answer"), Slow)
    lines = [Line(number, str(number).encode(), None) for number in (1, 2, 3, 4)]
    with pytest.raises(Stopped) as caught:
        Sending(producer, "t", "line").send(iter(lines), None, {})
    assert caught.value.document()["stored_after"] == [3, 4]
    message = caught.value.failure().message
    assert "3 lines stored, perhaps also line 2: resume from line 2" in message
    assert "skip 2 lines stored after it" in message


def test_failure_known_at_once_sends_nothing_more() -> None:
    producer: Any = Unreliable(b"2", RequestTimedOut("no answer"))
    lines = iter([Line(number, str(number).encode(), None) for number in (1, 2, 3)])
    with pytest.raises(Stopped) as caught:
        Sending(producer, "t", "line").send(lines, None, {})
    assert isinstance(caught.value.error, RequestTimedOut)
    assert caught.value.document()["go_on_from"] == 2
    assert next(lines).number == 3


def test_count_numbers_the_messages(run: Run, broker: EmbeddedBroker) -> None:
    assert run("send", "counted", "event {n}", "--key", "k", "--count", "3").exit_code == 0
    assert stored(broker, "counted") == [("k", b"event 1"), ("k", b"event 2"), ("k", b"event 3")]


def test_ordered_topic_refuses_a_message_without_key(run: Run, broker: EmbeddedBroker) -> None:
    assert run("topic", "create", "strict", "--ordered").exit_code == 0
    result = run("send", "strict", "x")
    assert result.exit_code == 2
    assert "--key" in result.stderr
    assert "Traceback" not in result.output
    assert stored(broker, "strict") == []


def test_a_refused_message_is_reported_once(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The producer's log line is suppressed, because the command reports the same."""
    strict = BrokerOptions(tmp_path, listen=Address("127.0.0.1", 0), max_body_bytes=10)
    with EmbeddedBroker(strict) as broker:
        result = run("send", "orders", "more than ten bytes", "--key", "a", "--server", broker.address)
    assert result.exit_code != 0
    assert len(result.stderr.splitlines()) == 1
    assert [each.name for each in caplog.records if each.name.startswith("lanemq.client")] == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--file", "-", "--count", "2"), "--count repeats VALUE"),
        (("x", "--key-separator", ":"), "--key-separator needs --file"),
        (("--file", "-", "--key-separator", ":", "--key", "k"), "--key-separator needs --file"),
        (("--file", "-", "--key-separator", ""), "--key-separator needs --file"),
        (("x", "--property", "novalue"), "is not NAME=VALUE"),
        (("x", "--property", "=value"), "is not NAME=VALUE"),
    ],
)
def test_options_that_contradict_each_other_are_refused(run: Run, words: tuple[str, ...], problem: str) -> None:
    result = run("send", "contradictory", *words, stdin="a:1\n")
    assert result.exit_code == 2
    assert problem in result.stderr
    assert run("topic", "describe", "contradictory").exit_code == 1, "nothing was sent"


def test_value_and_file_together_are_a_usage_error(run: Run) -> None:
    assert run("send", "t", "x", "--file", "-", stdin="y").exit_code == 2
    assert run("send", "t").exit_code == 2


def test_failure_in_the_middle_says_how_much_is_stored(run: Run, broker: EmbeddedBroker) -> None:
    too_large = "x" * (5 * 1024 * 1024)
    result = run("send", "halfway", "--file", "-", "--key", "k", stdin=f"one\n{too_large}\nthree\n")
    assert result.exit_code == 2
    assert "line 2: the body has" in result.stderr
    assert "1 line stored: resume from line 2" in result.stderr
    assert stored(broker, "halfway") == [("k", b"one")]


def test_unreachable_broker_is_one_line_and_exit_code_1(run: Run) -> None:
    result = run("send", "t", "x", "--server", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.stderr
    assert len(result.stderr.splitlines()) == 1
