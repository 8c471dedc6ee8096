"""The examples run as shipped, and show what they claim."""

import importlib.util
import runpy
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from lanemq import Admin
from lanemq.testing.embedded import EmbeddedBroker

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.row("A16")
def test_hundred_orders_puts_each_order_into_one_queue_in_order(broker: EmbeddedBroker) -> None:
    """10 keys with 10 messages each; a receipt names the queue, and offsets grow with the calls."""
    with Admin(broker.address) as admin:
        admin.create_topic("TopicTest", queues=4, ordered=True)
    places = defaultdict(list)
    for receipt in example("hundred_orders").send_all(broker.address, "TopicTest"):
        places[receipt.key].append((receipt.queue.queue_id, receipt.offset))
    assert sorted(places) == [str(order) for order in range(10)]
    for order, stored in places.items():
        assert len(stored) == 10
        assert {queue for queue, _ in stored} == {int(order) % 4}
        assert stored == sorted(stored)


@pytest.mark.row("A16")
@pytest.mark.row("A17")
def test_hundred_orders_receives_the_wanted_tags_in_order(broker: EmbeddedBroker) -> None:
    seen = example("hundred_orders").main(broker.address)
    wanted = defaultdict(list)
    for i in range(100):
        if i % 5 in (0, 2, 3):
            wanted[str(i % 10)].append(i)
    assert seen == wanted


@pytest.mark.row("A17")
def test_committed_offsets_pass_messages_that_nobody_wants(broker: EmbeddedBroker) -> None:
    """A group that wants some tags only would otherwise look behind for ever."""
    example("hundred_orders").main(broker.address)
    with Admin(broker.address) as admin:
        lags = {each.queue.queue_id: each.lag for each in admin.describe_group("hundred-orders").queues}
    assert lags == dict.fromkeys(range(4), 0)


def test_hundred_orders_explains_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["hundred_orders.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / "hundred_orders.py"), run_name="__main__")
    assert ended.value.code == 0
    assert "host:port of the broker" in capsys.readouterr().out


@pytest.mark.row("A101")
def test_no_order_is_shipped_before_it_was_created_and_paid(broker: EmbeddedBroker) -> None:
    orders = example("order_life_cycle").main(broker.address)
    assert len(orders.lives) == 5
    assert all(life == ["created", "paid", "shipped"] for life in orders.lives.values())
    assert orders.early > 0, "the warehouse must have been too early, or nothing was shown"


def test_listener_statuses_mean_what_they_mean_in_rocketmq(broker: EmbeddedBroker) -> None:
    suspending, committing = example("rocketmq_listener").main(broker.address)
    assert suspending.attempts == [1, 2, 2, 2, 3, 4, 5]
    assert committing.attempts == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]
    assert committing.committed == [1, 2, 3, 4, 5]


def test_pipelined_send_keeps_keys_in_order(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    example("pipelined_send").main(broker.address)
    assert capsys.readouterr().out.count("messages in order") == 3
