"""The examples run as shipped and show what they claim."""

import importlib.util
import runpy
import sqlite3
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lanemq import Admin
from lanemq.testing.embedded import EmbeddedBroker

EXAMPLES = Path(__file__).parent.parent / "examples"


pytestmark = pytest.mark.lanemq(own_broker=True)
"""Examples name their topics, so each test has a broker of its own."""


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_hello_prints_the_whole_life_of_the_order_that_does_not_fail(capsys: pytest.CaptureFixture[str]) -> None:
    """And the README shows that program, and what it prints. The two keys run beside each other, in any order."""
    example("hello")
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if "order-42" in line] == [f"order-42 {s}" for s in ("created", "paid", "shipped")]
    assert "order-43 created" in printed
    assert "order-43 shipped" not in printed
    readme = (EXAMPLES.parent / "README.md").read_text("utf-8")
    program = (EXAMPLES / "hello.py").read_text("utf-8").split("\n\n", 1)[1]
    assert f"```python\n{program}```" in readme
    assert sorted(readme.split("```text\n")[1].split("```")[0].splitlines()) == sorted(printed)


@pytest.mark.row("A16")
def test_hundred_orders_stores_each_order_in_one_queue_in_order(lanemq_broker: EmbeddedBroker) -> None:
    """10 keys with 10 messages each. Receipts name one queue per key, and offsets grow with the calls."""
    with Admin(lanemq_broker.address) as admin:
        admin.create_topic("TopicTest", queues=4, ordered=True)
    places = defaultdict(list)
    for receipt in example("hundred_orders").send_all(lanemq_broker.address, "TopicTest"):
        places[receipt.key].append((receipt.queue.queue_id, receipt.offset))
    assert sorted(places) == [str(order) for order in range(10)]
    for order, stored in places.items():
        assert len(stored) == 10
        assert {queue for queue, _ in stored} == {int(order) % 4}
        assert stored == sorted(stored)


@pytest.mark.row("A16")
@pytest.mark.row("A17")
def test_hundred_orders_receives_the_tags_it_asked_for_in_order(lanemq_broker: EmbeddedBroker) -> None:
    seen = example("hundred_orders").main(lanemq_broker.address)
    wanted = defaultdict(list)
    for i in range(100):
        if i % 5 in (0, 2, 3):
            wanted[str(i % 10)].append(i)
    assert seen == wanted


@pytest.mark.row("A17")
def test_committed_offsets_pass_messages_with_other_tags(lanemq_broker: EmbeddedBroker) -> None:
    """Otherwise the lag of a group that filters by tag would never be 0."""
    example("hundred_orders").main(lanemq_broker.address)
    with Admin(lanemq_broker.address) as admin:
        lags = {each.queue.queue_id: each.lag for each in admin.describe_group("hundred-orders").queues}
    assert lags == dict.fromkeys(range(4), 0)


def test_hundred_orders_has_a_help_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["hundred_orders.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / "hundred_orders.py"), run_name="__main__")
    assert ended.value.code == 0
    assert "host:port of the broker" in capsys.readouterr().out


@pytest.mark.row("A101")
def test_no_order_is_shipped_before_it_was_created_and_paid(lanemq_broker: EmbeddedBroker) -> None:
    orders = example("order_life_cycle").main(lanemq_broker.address)
    assert len(orders.lives) == 5
    assert all(life == ["created", "paid", "shipped"] for life in orders.lives.values())
    assert orders.early > 0, "the warehouse was never early, so the example shows nothing"


def test_listener_statuses_mean_what_they_mean_in_rocketmq(lanemq_broker: EmbeddedBroker) -> None:
    suspending, committing = example("rocketmq_listener").main(lanemq_broker.address)
    assert suspending.attempts == [1, 2, 2, 2, 3, 4, 5]
    assert committing.attempts == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]
    assert committing.committed == [1, 2, 3, 4, 5]


def test_pipelined_send_stores_keys_in_order_in_three_ways(
    lanemq_broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    example("pipelined_send").main(lanemq_broker.address)
    assert capsys.readouterr().out.count("messages in order") == 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_order_pipeline_parks_one_order_and_ends_with_the_right_table(spark: Any) -> None:
    end = example("order_pipeline").main(spark, orders=120)
    assert end["right"]
    assert end["parked"] == ["order-7"]
    assert end["repeats"] > 0
    assert end["rows"] == end["messages"] - end["repeats"] - 1, (
        "each event once, and the one that cannot be decoded not at all"
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_balance_of_the_ledger_is_the_sum_of_its_entries(spark: Any) -> None:
    end = example("ledger_balances").main(spark, transfers=800)
    assert end["right"]
    assert end["entries"] < end["messages"], "no message was sent twice, so the example shows nothing"
    assert end["refused"] > 0


def test_the_audit_of_the_ledger_finds_a_wrong_or_missing_entry(tmp_path: Path) -> None:
    """Negative control for the example's own check."""
    ledger = example("ledger_balances")
    messages = [("account-1", ledger.Entry(1, "opening", 100)), ("account-1", ledger.Entry(2, "t0", -30))]
    with closing(sqlite3.connect(tmp_path / "bank.db")) as bank:
        bank.execute("CREATE TABLE entries (account, number, cents, booked, balance)")
        bank.execute("INSERT INTO entries VALUES ('account-1', 1, 100, 1, 100), ('account-1', 2, -30, 1, 70)")
        bank.commit()
        assert ledger.audit(tmp_path / "bank.db", messages)["right"]
        bank.execute("UPDATE entries SET balance = 130 WHERE number = 2")
        bank.commit()
        assert not ledger.audit(tmp_path / "bank.db", messages)["right"]
        bank.execute("DELETE FROM entries WHERE number = 2")
        bank.commit()
        assert not ledger.audit(tmp_path / "bank.db", messages)["right"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_visits_counts_the_same_as_plain_python(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    for name in ("VISITS_SERVERS", "VISITS_FOLDER"):
        monkeypatch.setenv(name, "")
    end = example("visits").main(spark)
    assert end["right"]
    assert end["visits"] > 0


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_sessions_are_the_same_as_those_found_by_plain_python(spark: Any) -> None:
    end = example("sessions").main(spark)
    assert end["right"]
    assert end["closed"] > end["open"] > 0
