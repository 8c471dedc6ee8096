"""`lanemq topic`: topics are created, listed, described and deleted."""

import json

import pytest
from tests.cli.conftest import Run

from lanemq.client.producer.producer import Producer
from lanemq.testing.embedded import EmbeddedBroker


def test_created_topic_is_listed_and_described(run: Run, producer: Producer) -> None:
    created = run("topic", "create", "orders", "--queues", "3", "--ordered", "--json")
    assert created.exit_code == 0, created.output
    assert json.loads(created.stdout) == {
        "topic": "orders",
        "queues": 3,
        "ordered": True,
        "globally_ordered": False,
        "created": True,
    }
    producer.send("orders", 1, key="a")
    (listed,) = [each for each in json.loads(run("topic", "list", "--json").stdout) if each["topic"] == "orders"]
    assert listed == {"topic": "orders", "queues": 3, "ordered": True, "messages": 1}
    described = json.loads(run("topic", "describe", "orders", "--json").stdout)
    assert [each["queue"] for each in described["bounds"]] == [0, 1, 2]
    (written,) = [each for each in described["bounds"] if each["messages"]]
    assert (written["first"], written["end"]) == (0, 1)
    assert written["last_stored_at"].startswith("20")


def test_text_output_is_tables(run: Run) -> None:
    assert run("topic", "create", "seen", "--queues", "2").stdout == "topic seen: 2 queues\n"
    assert "seen" in run("topic", "list").stdout
    described = run("topic", "describe", "seen").stdout
    assert "topic seen: 2 queues, not ordered, 0 messages" in described
    assert "last stored" in described


def test_the_queue_count_of_an_ordered_topic_cannot_change(run: Run) -> None:
    """With another count, a key's next message would go to another queue and overtake older ones."""
    assert run("topic", "create", "fixed", "--queues", "2", "--ordered").exit_code == 0
    refused = run("topic", "create", "fixed", "--queues", "3", "--ordered")
    assert refused.exit_code == 1
    assert "topic fixed" in refused.stderr
    assert run("topic", "create", "fixed", "--queues", "2", "--ordered").exit_code == 0


@pytest.mark.parametrize("how", ["--ordered", "--globally-ordered"])
def test_a_topic_with_unordered_messages_becomes_ordered_only_with_force(
    run: Run, producer: Producer, how: str
) -> None:
    """They may be in other queues than their keys select, and newer messages would overtake them."""
    name = f"mixed{how}"
    run("topic", "create", name, "--queues", "1")
    producer.send(name, 1, key="a")
    refused = run("topic", "create", name, "--queues", "1", how)
    assert refused.exit_code == 1
    assert f"topic {name} is not ordered and holds 1 message, " in refused.stderr
    assert "--force" in refused.stderr
    assert json.loads(run("topic", "describe", name, "--json").stdout)["ordered"] is False
    assert run("topic", "create", name, "--queues", "1", how, "--force").exit_code == 0
    assert json.loads(run("topic", "describe", name, "--json").stdout)["ordered"] is True


def test_a_topic_that_becomes_ordered_keeps_its_number_of_queues(run: Run, producer: Producer) -> None:
    producer.send("mistyped", 1)  # created by the send, with four queues and without order
    refused = run("topic", "create", "mistyped", "--queues", "8", "--ordered", "--force")
    assert "exists with 4 queues and is not ordered: with 8, keys would leave their messages" in refused.stderr
    assert "--force" not in refused.stderr
    forced = run("topic", "create", "mistyped", "--ordered", "--force")
    assert forced.stdout == "topic mistyped: 4 queues, ordered by key\n"


def test_an_empty_topic_can_become_ordered(run: Run) -> None:
    run("topic", "create", "empty", "--queues", "2")
    assert run("topic", "create", "empty", "--queues", "2", "--ordered").exit_code == 0


def test_an_ordered_topic_with_messages_can_be_created_again(run: Run, producer: Producer) -> None:
    """Set-up scripts run more than once."""
    run("topic", "create", "again", "--queues", "2", "--ordered")
    producer.send("again", 1, key="a")
    assert run("topic", "create", "again", "--queues", "2", "--ordered").exit_code == 0


@pytest.mark.row("A1")
def test_globally_ordered_topic_has_one_queue(run: Run, broker: EmbeddedBroker) -> None:
    assert run("topic", "create", "whole", "--globally-ordered").stdout == "topic whole: 1 queue, globally ordered\n"
    described = json.loads(run("topic", "describe", "whole", "--json").stdout)
    assert (described["ordered"], described["queues"]) == (True, 1)


@pytest.mark.row("A1")
def test_globally_ordered_topic_with_more_queues_is_refused(run: Run) -> None:
    result = run("topic", "create", "torn", "--globally-ordered", "--queues", "2")
    assert result.exit_code == 2
    assert "--globally-ordered means 1 queue" in result.stderr
    assert run("topic", "describe", "torn").exit_code == 1


def test_deleted_topic_is_gone(run: Run, producer: Producer) -> None:
    producer.send("old", 1)
    result = run("topic", "delete", "old", "--yes", "--json")
    assert json.loads(result.stdout) == {"topic": "old", "deleted": True, "messages": 1}
    assert run("topic", "describe", "old").exit_code == 1


@pytest.mark.usefixtures("on_terminal")
def test_delete_asks_on_a_terminal(run: Run) -> None:
    run("topic", "create", "precious")
    asked = run("topic", "delete", "precious", stdin="n\n")
    assert asked.exit_code == 1
    assert "with 0 messages" in asked.stderr
    assert run("topic", "describe", "precious").exit_code == 0
    assert run("topic", "delete", "precious", stdin="y\n").exit_code == 0
    assert run("topic", "describe", "precious").exit_code == 1


def test_delete_without_a_terminal_needs_yes(run: Run) -> None:
    run("topic", "create", "kept")
    refused = run("topic", "delete", "kept", stdin="y\n")
    assert (refused.exit_code, "--yes" in refused.stderr) == (1, True)
    assert run("topic", "describe", "kept").exit_code == 0


def test_deleting_what_does_not_exist_does_not_advise_to_create_it(run: Run) -> None:
    result = run("topic", "delete", "nowhere", "--yes")
    assert result.exit_code == 1
    assert "topic 'nowhere' does not exist; see lanemq topic list" in result.stderr
    assert "create" not in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "describe", "bad name!"),
        ("topic", "delete", "bad name!", "--yes"),
        ("tail", "bad name!"),
        ("send", "bad name!", "x"),
        ("key", "k", "--topic", "bad name!"),
    ],
    ids=lambda words: words[0] + words[1][:4],
)
def test_an_illegal_name_is_not_suggested(run: Run, words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert "use 1 to 127 of the characters" in result.stderr
    assert "topic create" not in result.stderr


def test_unknown_topic_names_the_fix(run: Run) -> None:
    result = run("topic", "describe", "nowhere")
    assert result.exit_code == 1
    assert "create it with: lanemq topic create nowhere" in result.stderr


def test_illegal_name_is_a_usage_error_that_says_what_is_allowed(run: Run) -> None:
    result = run("topic", "create", "no spaces")
    assert result.exit_code == 2
    assert "use 1 to 127 of the characters" in result.stderr


@pytest.mark.parametrize("flags", [["--ordered", "--queues", "3"], ["--queues", "5"], ["--globally-ordered"]])
def test_creating_a_topic_again_changes_nothing(run: Run, flags: list[str]) -> None:
    name = f"again{len(flags)}{flags[-1].strip('-')}"
    first = json.loads(run("topic", "create", name, *flags, "--json").stdout)
    again = run(
        "topic", "create", name, *[flag for flag in flags if flag.startswith("--") and flag != "--queues"], "--json"
    )
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout) == first | {"created": False}
    assert "it existed before" in run("topic", "create", name, *flags).stdout


def test_an_ordered_topic_is_not_created_again_with_other_settings(run: Run) -> None:
    run("topic", "create", "settled", "--ordered", "--queues", "3")
    for flags in (
        [],
        ["--ordered", "--queues", "4"],
        ["--ordered", "--queues", "4", "--force"],
        ["--globally-ordered"],
    ):
        refused = run("topic", "create", "settled", *flags)
        assert refused.exit_code == 1
        assert "nothing was changed" in refused.stderr
    assert json.loads(run("topic", "describe", "settled", "--json").stdout)["queues"] == 3
