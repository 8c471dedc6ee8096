"""A producer is killed while batches are in flight: what is stored is the beginning of what it sent, in order."""

import signal

import pytest
from tests.chaos.system import TOPIC, SystemUnderTest, stored_records

from lanemq.log.store import Store
from lanemq.wire.properties import find_stamp


@pytest.mark.row("A10")
def test_a_producer_killed_between_batches_leaves_a_prefix_without_a_gap(system: SystemUnderTest) -> None:
    broker = system.broker(default_queues=4)
    producer = system.producer(ahead=5_000, keys=40)
    system.until("batches flow", lambda: len(system.seen("acked")) > 2_000)
    broker.stop()  # or a producer that had to wait for the machine may have everything answered when it dies
    system.until("some are under way", lambda: len(system.seen("send")) > len(system.seen("acked")))
    system.kill(producer)
    broker.signal(signal.SIGCONT)
    system.finish(broker)
    sent: dict[str, list[str]] = {}
    for event in system.seen("send"):
        sent.setdefault(event["key"], []).append(event["id"])
    store = Store(system.data)
    store.recover()
    stored: dict[str, list[str]] = {}
    for number in range(4):
        records = list(stored_records(store, number))
        assert [find_stamp(view.properties_text).sequence for view in records] == list(range(len(records)))  # type: ignore[union-attr]
        for view in records:
            stored.setdefault(view.properties["__SHARDINGKEY"], []).append(view.properties["UNIQ_KEY"])
    store.close()
    assert len(stored) == 40
    assert all(sent[key][: len(ids)] == ids for key, ids in stored.items())
    acked = {event["id"] for event in system.seen("acked")}
    assert acked <= {name for ids in stored.values() for name in ids}
    assert len(acked) < sum(map(len, sent.values())), f"topic {TOPIC}: the kill came when nothing was under way"
