"""`lanemq tail`: shows messages and changes nothing."""

import json
from collections.abc import Callable

import pytest
from click.testing import Result
from tests.cli.conftest import Run

from lanemq.client.admin.admin import Admin
from lanemq.client.producer.producer import Producer
from lanemq.client.topics import NewTopic
from lanemq.testing.embedded import EmbeddedBroker


@pytest.fixture(scope="module", autouse=True)
def _letters(broker: EmbeddedBroker) -> None:
    """30 messages of three keys in `letters`, in turn."""
    with Producer(broker.address, create=NewTopic("letters", 4, ordered=False)) as producer:
        for number in range(30):
            producer.send("letters", {"n": number}, key="abc"[number % 3], tag="even" if number % 2 == 0 else "odd")


def numbers(output: str) -> list[int]:
    return [json.loads(line)["value"]["n"] for line in output.splitlines()]


def test_default_is_the_ten_newest(run: Run) -> None:
    result = run("tail", "letters", "--json")
    assert result.exit_code == 0, result.output
    assert numbers(result.stdout) == list(range(20, 30)), "many of them share a millisecond"


def test_from_first_shows_everything(run: Run) -> None:
    assert sorted(numbers(run("tail", "letters", "--from", "first", "--json").stdout)) == list(range(30))


@pytest.mark.parametrize("word", ["1h", "1h ago"])
def test_a_span_shows_what_was_stored_since(run: Run, word: str) -> None:
    assert len(numbers(run("tail", "letters", "--from", word, "--json").stdout)) == 30


@pytest.mark.parametrize("word", ["earliest", "latest"])
def test_kafkas_words_for_positions_are_refused(run: Run, word: str) -> None:
    assert run("tail", "letters", "--from", word).exit_code == 2


def test_messages_of_a_key_come_in_order(run: Run) -> None:
    assert numbers(run("tail", "letters", "--from", "first", "--key", "b", "--json").stdout) == list(range(1, 30, 3))


def test_the_newest_messages_of_a_rare_key_are_found(run: Run) -> None:
    """The newest page may contain no match; reading backwards must not stop there."""
    result = run("tail", "letters", "--key", "a", "--tag", "even", "--count", "4", "--json")
    assert numbers(result.stdout) == [6, 12, 18, 24]


def test_count_limits_the_messages(run: Run) -> None:
    assert len(numbers(run("tail", "letters", "--from", "first", "--count", "7", "--json").stdout)) == 7


def test_from_time_skips_older_messages(run: Run) -> None:
    assert run("tail", "letters", "--from", "2999-01-01T00:00Z").stdout == ""
    assert len(numbers(run("tail", "letters", "--from", "1h", "--json").stdout)) == 30


def test_text_output_shows_queue_offset_key_tag_and_value(run: Run) -> None:
    line = run("tail", "letters", "--key", "c", "--count", "1").stdout
    assert "@9  c [odd]  " in line
    assert '{"n":29}' in line


def test_follow_begins_with_the_newest_and_goes_on(
    run: Run, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `tail -n 1 -f`: the last message, then everything that arrives, here in the first pause."""
    producer.send_many("followed", [("k", {"n": n}) for n in range(3)])
    steps = [lambda n=n: producer.send("followed", {"n": n}, key="k") for n in (3, 4)]
    assert numbers(followed(run, "followed", monkeypatch, *steps, count=1).stdout) == [2, 3, 4]


def followed(
    run: Run, topic: str, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object], count: int = 10
) -> Result:
    """What `tail -f` shows if one of the steps is taken in each pause."""
    pauses = iter(steps)

    def pause(_: float) -> None:
        act = next(pauses, None)
        if act is None:
            raise KeyboardInterrupt
        act()

    monkeypatch.setattr("lanemq.cli.commands.tail.time.sleep", pause)
    return run("tail", topic, "-n", str(count), "-f", "--json")


def test_follow_waits_for_a_broker_that_restarts(
    run: Run, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(n: int) -> None:
        with Producer(broker.address, create=NewTopic("restarted", 2, ordered=True)) as producer:
            producer.send("restarted", {"n": n}, key="k")

    send(0)
    result = followed(run, "restarted", monkeypatch, broker.stop, int, int, broker.start, lambda: send(1))
    assert numbers(result.stdout) == [0, 1]
    assert result.stderr.count("waiting until the broker answers again") == 1


@pytest.mark.parametrize("before", [2, 5])
def test_follow_shows_a_topic_that_was_created_again_from_its_first_message(
    run: Run, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Also if it has more messages by then than the one before (2)."""

    def create(*values: int) -> None:
        with Producer(broker.address, create=NewTopic("again", 2, ordered=True)) as producer:
            producer.send_many("again", [("k", {"n": n}) for n in values])

    def delete() -> None:
        with Admin(broker.address) as admin:
            admin.delete_topic("again")

    def recreate() -> None:
        delete()
        create(*range(10, 13))

    create(*range(before))
    at_once = followed(run, "again", monkeypatch, recreate)
    assert numbers(at_once.stdout) == [*range(before), 10, 11, 12]
    assert at_once.stderr == "topic 'again' was deleted and created again; showing it from its first message\n"
    later = followed(run, "again", monkeypatch, delete, int, lambda: create(20))
    assert numbers(later.stdout) == [10, 11, 12, 20]
    assert later.stderr.splitlines() == [
        "topic 'again' was deleted; waiting until it is created again",
        "topic 'again' was deleted and created again; showing it from its first message",
    ]
    delete()


def test_properties_are_shown_on_request(run: Run, producer: Producer) -> None:
    producer.send("followed", "x", key="k", properties={"region": "eu\x1b[31m"})
    shown = run("tail", "followed", "-n", "1", "--properties").stdout
    assert "\n    region: eu\\x1b[31m\n" in shown
    assert "region" not in run("tail", "followed", "-n", "1").stdout
    assert json.loads(run("tail", "followed", "-n", "1", "--json").stdout)["properties"]["region"] == "eu\x1b[31m"


def test_control_c_is_a_normal_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lanemq.cli.commands.tail.time.sleep", interrupted)
    result = run("tail", "letters", "--follow", "--json")
    assert result.exit_code == 0
    assert len(numbers(result.stdout)) == 10


def test_tail_joins_no_group_and_commits_nothing(run: Run) -> None:
    run("tail", "letters", "--from", "first")
    assert json.loads(run("group", "list", "--json").stdout) == []


def test_unknown_topic_names_the_fix(run: Run) -> None:
    result = run("tail", "nowhere")
    assert result.exit_code == 1
    assert "lanemq topic create nowhere" in result.stderr


@pytest.mark.parametrize("time", ["yesterday", "99999999999999d"])
def test_unreadable_time_is_a_usage_error(run: Run, time: str) -> None:
    result = run("tail", "letters", "--from", time)
    assert result.exit_code == 2
    assert "10m for ten minutes ago" in result.stderr
