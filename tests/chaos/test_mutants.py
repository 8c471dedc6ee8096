"""Without any one of the guards, a whole run breaks a promise, and a test names it.

`GUARDS` is the table of all of them with the test that takes each one out. Those of `CASES` are taken out here, in
the simulation; what a simulation does not have (a busy broker, a flipped bit, another producer) is done on real ones.
"""

import shutil
from concurrent.futures import Future
from pathlib import Path
from random import Random

import pytest
from tests.chaos import mutants
from tests.chaos.mutants import MUTANTS
from tests.chaos.system import SystemUnderTest, stored_records
from tests.client.producer.producers import sending
from tests.sim.test_mutants import BUSY, Case, plan_for
from tests.sim.test_mutants import CASES as SIMULATED

from lanemq.broker.config import BrokerOptions
from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.consumer import Consumer
from lanemq.client.producer.producer import Producer
from lanemq.client.receipt import Receipt
from lanemq.client.topics import NewTopic
from lanemq.log.store import Store
from lanemq.model.java_hash import java_string_hash
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.testing.sim.run import run_plan

CALM = BUSY | {"slow": 0.0, "calm_ms": 300}
KILLED_WHILE_SENDING = CALM | {"window": 8, "producers": 4, "messages": 120, "concurrent": 0, "broadcasting": 0}
CASES = {
    "off_by_one": (0, Case(mutants.off_by_one, ("consumer killed",), ("D2",), BUSY)),
    "wide_ranges": (0, Case(mutants.wide_ranges, ("consumer killed", "member leaves"), ("D2", "S1"), BUSY)),
    "hold": (0, Case(mutants.hold, (), ("B3",), BUSY | {"failing": 0.15})),
    "saved_epochs": (0, Case(mutants.saved_epochs, ("broker killed", "member leaves"), ("C2",), BUSY)),
    "restored_leases": (0, Case(mutants.restored_leases, ("broker killed", "member joins"), ("C1", "B5"), BUSY)),
    "restored_stamps": (
        3,
        Case(
            mutants.restored_stamps,
            ("broker killed", "answer lost", "disk slow"),
            ("lanes", "B6"),
            KILLED_WHILE_SENDING,
        ),
    ),
    "folder_sync": (2, Case(mutants.folder_sync, ("broker loses power",), ("S", "B1"), BUSY | {"slow": 0.0})),
}
"""With the first seed; a few are enough."""
NO_GUARDS = {
    "late_ticks",
    "slow_disk",
    "stalling_disk",
    "little_memory",
    "patient_server",
    "failing_write",
    "failing_sync",
}
GUARDS = {
    "epoch_check": "sim/test_mutants.py::epoch at commit, chaos/test_consumer_frozen.py",
    "broker_lock": "sim/test_mutants.py::one owner, chaos/test_three_locks.py",
    "lane_lock": "sim/test_mutants.py::one turn per lane, chaos/test_three_locks.py",
    "drain": "sim/test_mutants.py::drained before unlocked, chaos/test_three_locks.py",
    "lease_end": "sim/test_mutants.py::end of the lease, promises/test_04_one_owner.py",
    "keep_alive_deadline": "sim/test_mutants.py::turns start before the keep-alive deadline",
    "keep_alive_waited_for": "sim/test_mutants.py::the broker waits for the keep-alive deadline",
    "member_silence": "promises/test_04_one_owner.py",
    "pauses_once": "promises/test_04_one_owner.py",
    "joining_again": "promises/test_04_one_owner.py",
    "dead_connection": "promises/test_04_one_owner.py",
    "lease_news": "chaos/test_consumer_frozen.py",
    "finished_ranges": "sim/test_mutants.py::finished ranges, chaos/test_consumer_killed.py",
    "progress_inside_a_run": "chaos/test_consumer_killed.py",
    "finished_span": "sim/test_mutants.py::finished ranges instead of their span",
    "saved_offsets": "sim/test_mutants.py::offsets saved every 200 ms",
    "offsets_at_stop": "sim/test_mutants.py::offsets saved at a stop",
    "flush_before_ack": "sim/test_mutants.py::flushed before acknowledged, chaos/test_broker_killed.py",
    "sync_before_ack": "sim/test_mutants.py::synced before acknowledged, chaos/test_power_cut.py",
    "stamp_check": "sim/test_mutants.py::stamps, promises/test_02_stored_as_sent.py",
    "first_unfinished": "sim/test_mutants.py::first unfinished, chaos/test_consumer_killed.py",
    **dict.fromkeys(CASES, "chaos/test_mutants.py"),
    "sequence_check": "chaos/test_mutants.py",
    "record_checksum": "sim/test_mutants.py::checksum of a record, chaos/test_mutants.py",
    "torn_end": "sim/test_mutants.py::cut at the first torn record",
    "lane_fence": "sim/test_mutants.py::a lane runs at the broker until nothing is left of it",
    "confirmed_lane": "sim/test_mutants.py::a lane is finished when the broker has it",
    "pinned_log": "broker/handlers/test_parking.py",
    "selector_sign": "chaos/test_mutants.py",
    "applied_place": "effects/test_controls.py",
    "effect_owner": "effects/test_controls.py",
    "shared_epoch": "effects/test_owners_at_once.py",
    "checked_status": "effects/test_controls.py",
}
TESTS = Path(__file__).parents[1]


def test_every_guard_is_removed_in_some_test() -> None:
    assert set(GUARDS) == set(MUTANTS) - NO_GUARDS
    for guard, tests in GUARDS.items():
        for each in tests.split(", "):
            name, _, case = each.partition("::")
            text = (TESTS / name).read_text()
            assert case in SIMULATED if case else guard in text, f"{guard} is not taken out in {name}"


@pytest.mark.slow
@pytest.mark.parametrize("guard", CASES)
def test_without_its_guard_a_simulated_run_breaks_a_promise(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutants.check_alone()
    first, case = CASES[guard]
    for seed in range(first, first + case.seeds):
        with monkeypatch.context() as patched:
            MUTANTS[guard](patched.setattr)
            result = run_plan(plan_for(case, seed))
        if not result.passed:
            break
    assert any(problem.startswith(case.shown_by) for problem in result.problems), result.problems
    with_guard = run_plan(plan_for(case, seed))
    assert with_guard.passed, with_guard.problems


def steps_stored(system: SystemUnderTest, without: list[str]) -> list[int]:
    """Large and small messages of one key, many in flight, to a broker that is often too busy for the large ones."""
    broker = system.broker([*without, "slow_disk", "little_memory"], default_queues=1)
    with sending(max_count=1), Producer(system.address, create=NewTopic("orders", 1, ordered=False)) as producer:
        futures: list[Future[Receipt]] = []
        for step in range(60):
            body = step.to_bytes(4, "big") + Random(step).randbytes(600_000 if step % 2 == 0 else 10)
            futures.append(producer.submit("orders", body, key="k"))
        for future in futures:
            future.exception(60)
    system.finish(broker)
    store = Store(system.data)
    store.recover()
    steps = [int.from_bytes(record.body[:4], "big") for record in stored_records(store, 0)]
    store.close()
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("without", [[], ["sequence_check"]], ids=["with the sequence check", "without"])
def test_only_the_sequence_check_keeps_order_when_a_busy_broker_refuses_messages(
    system: SystemUnderTest, without: list[str]
) -> None:
    steps = steps_stored(system, without)
    assert (steps == list(range(60))) is (not without), steps


@pytest.mark.parametrize("checked", [True, False], ids=["with the checksum", "without"])
def test_only_the_checksum_keeps_a_flipped_bit_from_a_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    sent = [f"message {number}" for number in range(10)]
    with EmbeddedBroker(BrokerOptions(tmp_path / "live", listen=Address("127.0.0.1", 0))) as broker:
        with Producer(broker.address, create="orders") as producer:
            for text in sent:
                producer.send("orders", text, key="k", queue=0)
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    log = next((tmp_path / "crashed" / "log").glob("*.log"))
    log.write_bytes(log.read_bytes().replace(b"message 4", b"message 5", 1))
    if not checked:
        MUTANTS["record_checksum"](monkeypatch.setattr)
    found = consumed(BrokerOptions(tmp_path / "crashed", listen=Address("127.0.0.1", 0)), 9 if checked else 10)
    assert found == (sent[:4] + sent[5:] if checked else [*sent[:4], "message 5", *sent[5:]])


def consumed(options: BrokerOptions, count: int) -> list[str]:
    found: list[str] = []
    with (
        EmbeddedBroker(options) as broker,
        Consumer(broker.address, group="g", topics=["orders"]) as consumer,
    ):
        while len(found) < count and (message := consumer.poll(timeout=60)) is not None:
            found.append(message.value())
            consumer.done(message)
    return found


def test_without_java_s_remainder_a_key_has_two_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two producers of the same keys, one like every RocketMQ client, one with Python's remainder."""
    keys = [f"key-{number}" for number in range(40)]
    chosen: list[list[int]] = []
    with EmbeddedBroker() as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("orders", queues=7)
        for _ in range(2):
            with Producer(broker.address) as producer:
                chosen.append([producer.send("orders", 1, key=key).queue.queue_id for key in keys])
            MUTANTS["selector_sign"](monkeypatch.setattr)
    assert chosen[0] == [abs(java_string_hash(key)) % 7 for key in keys]
    assert chosen[1] != chosen[0]
