"""kill -9 of the broker under load, again and again: what was acknowledged is there, once, in order."""

from functools import partial

import pytest
from tests.chaos.system import SystemUnderTest, complaint

from lanemq.checker.verdict import Verdict

NAIVE = ["flush_before_ack", "stalling_disk"]
ROUNDS = 3
"""How often the broker is killed here; `make chaos ROUNDS=500` does it more often."""


@pytest.mark.slow
@pytest.mark.timeout(240 + 60 * ROUNDS)
def test_a_broker_killed_under_load_keeps_every_acknowledged_message_once_and_in_order(system: SystemUnderTest) -> None:
    broker = system.broker(default_queues=4)
    producers = [system.producer(name, keys=50, ahead=500, pause_ms=1) for name in ("p", "q")]
    system.until("both producers are heard", lambda: {e["by"] for e in system.seen("acked")} == {"p", "q"})
    consumers = [system.consumer(name) for name in ("a", "b")]
    system.until("both consumers work", lambda: {e["by"] for e in system.seen("turn")} == {"a", "b"})
    for _ in range(ROUNDS):
        system.kill(broker)
        killed_at = system.seen("fault")[-1]["t"]
        broker = system.broker(default_queues=4)
        for name in ("p", "q"):
            system.until(f"{name} continues", partial(went_on, system, "acked", name, killed_at))
        system.until("consumers continue", partial(went_on, system, "turn", None, killed_at))
    system.finish(*producers)
    system.until("everything is done", system.is_drained)
    system.finish(*consumers)
    system.finish(broker)
    assert not system.seen("send_unknown"), "a restart is no reason to give up a send"
    system.dump_log()
    report = system.judge(f"faults={ROUNDS}", "acked=400")
    assert report.verdict is Verdict.PASS, complaint(report)


def went_on(system: SystemUnderTest, kind: str, by: str | None, after: int) -> bool:
    return len(system.seen(kind, by, after)) > 200


def flows_or_broke(system: SystemUnderTest, before: int) -> bool:
    return len(system.seen("acked")) > before + 500 or bool(system.seen("send_unknown"))


@pytest.mark.slow
def test_a_broker_that_acknowledges_before_it_writes_loses_messages(system: SystemUnderTest) -> None:
    """Negative control: the same kill, with the acknowledgement sent when a message is staged.

    On a disk that takes half a second, a kill finds such messages on any machine; it is tried a few times all the same.
    The producer may notice too: the restarted broker misses messages that it had acknowledged and refuses later ones.
    The consumer reads before the first kill: after it, everything may be lost and every key frozen.
    """
    broker = system.broker(NAIVE, default_queues=4)
    system.producer(keys=50, ahead=2_000)
    system.consumer("a", work_ms=0)
    system.until("a reads", lambda: system.seen("turn", "a"))
    for _ in range(ROUNDS):
        system.until("messages flow", partial(flows_or_broke, system, len(system.seen("acked"))))
        system.kill(broker)
        broker = system.broker(NAIVE, default_queues=4)
    for child in system.children("p", "a", "broker"):
        system.kill(child)
    system.dump_log()
    report = system.judge(f"faults={ROUNDS}", drained=False)
    assert report.verdict is Verdict.VIOLATION, complaint(report)
    assert {"S1", "S3", "S4", "B1"} & report.counts.keys(), complaint(report)
