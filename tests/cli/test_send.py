"""`lanemq send`: what is stored, what is said about it, and what is refused."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run

from lanemq.cli.reading import Reader
from lanemq.testing.embedded import EmbeddedBroker


def stored(broker: EmbeddedBroker, topic: str) -> list[tuple[str | None, bytes]]:
    """Everything in the topic, queue by queue."""
    with Reader(broker.address, topic) as reader:
        return [
            (message.key, message.body)
            for queue in reader.queues
            for message in reader.read(queue, *reader.bounds(queue))
        ]


def test_value_is_stored_and_its_place_is_told(run: Run, broker: EmbeddedBroker) -> None:
    result = run("send", "plain", "hello", "--key", "a", "--json")
    assert result.exit_code == 0, result.output
    (receipt,) = json.loads(result.stdout)
    assert receipt["topic"] == "plain"
    assert receipt["key"] == "a"
    assert receipt["stored"] == "durable"
    assert stored(broker, "plain") == [("a", b"hello")]


def test_people_get_a_table(run: Run) -> None:
    result = run("send", "tabled", "hello", "--key", "a")
    assert result.exit_code == 0
    assert "offset" in result.stdout
    assert "durable" in result.stdout


def test_tag_and_properties_travel_with_the_message(run: Run, broker: EmbeddedBroker) -> None:
    assert run("send", "tagged", "x", "--tag", "paid", "-p", "shop=3", "-p", "note=a=b").exit_code == 0
    with Reader(broker.address, "tagged") as reader:
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
    assert "line 2 has no key" in result.stderr


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


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--file", "-", "--count", "2"), "--count repeats a VALUE"),
        (("x", "--key-separator", ":"), "--key-separator goes with --file"),
        (("--file", "-", "--key-separator", ":", "--key", "k"), "--key-separator goes with --file"),
        (("--file", "-", "--key-separator", ""), "--key-separator goes with --file"),
        (("x", "--property", "novalue"), "write NAME=VALUE"),
        (("x", "--property", "=value"), "write NAME=VALUE"),
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
    assert "message 2, after 1 stored message: the body has" in result.stderr
    assert stored(broker, "halfway") == [("k", b"one")]


def test_unreachable_broker_is_one_line_and_exit_code_1(run: Run) -> None:
    result = run("send", "t", "x", "--server", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.stderr
    assert len(result.stderr.splitlines()) == 1
