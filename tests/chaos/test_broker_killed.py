"""kill -9 of the broker under load, again and again: what was acknowledged is there, once, in order."""

from functools import partial

import pytest
from tests.chaos.stage import Stage, complaint

from lanemq.checker.verdict import Verdict

NAIVE = ["flush_before_ack", "slow_disk"]
ROUNDS = 3
"""How often the broker is killed here; `test_rounds` does it as often as told."""


@pytest.mark.slow
@pytest.mark.timeout(240 + 60 * ROUNDS)
def test_a_broker_killed_under_load_keeps_every_acknowledged_message_once_and_in_order(stage: Stage) -> None:
    broker = stage.broker(default_queues=4)
    producers = [stage.producer(name, keys=50, ahead=500, pause_ms=1) for name in ("p", "q")]
    stage.until("both producers are heard", lambda: {e["by"] for e in stage.seen("acked")} == {"p", "q"})
    consumers = [stage.consumer(name) for name in ("a", "b")]
    stage.until("both consumers work", lambda: {e["by"] for e in stage.seen("turn")} == {"a", "b"})
    for _ in range(ROUNDS):
        stage.kill(broker)
        killed_at = stage.seen("fault")[-1]["t"]
        broker = stage.broker(default_queues=4)
        for name in ("p", "q"):
            stage.until(f"{name} goes on", partial(went_on, stage, "acked", name, killed_at))
        stage.until("consumers go on", partial(went_on, stage, "turn", None, killed_at))
    stage.finish(*producers)
    stage.until("everything is done", stage.is_drained)
    stage.finish(*consumers)
    stage.finish(broker)
    assert not stage.seen("send_unknown"), "a restart is no reason to give up a send"
    stage.dump_log()
    report = stage.judge(f"faults={ROUNDS}", "acked=400")
    assert report.verdict is Verdict.PASS, complaint(report)


def went_on(stage: Stage, kind: str, by: str | None, after: int) -> bool:
    return len(stage.seen(kind, by, after)) > 200


def flows_or_broke(stage: Stage, before: int) -> bool:
    return len(stage.seen("acked")) > before + 500 or bool(stage.seen("send_unknown"))


@pytest.mark.slow
def test_a_broker_that_acknowledges_before_it_writes_loses_messages(stage: Stage) -> None:
    """Negative control: the same kill, with the acknowledgement sent when a message is staged.

    On a disk that takes 30 ms, a kill finds such messages nearly always; it is tried a few times all the same. The
    producer may notice too: the restarted broker misses messages that it had acknowledged, and refuses what follows.
    The consumer reads before the first kill: after it, everything may be lost and every key frozen.
    """
    broker = stage.broker(NAIVE, default_queues=4)
    stage.producer(keys=50, ahead=2_000)
    stage.consumer("a", work_ms=0)
    stage.until("a reads", lambda: stage.seen("turn", "a"))
    for _ in range(5):
        stage.until("messages flow", partial(flows_or_broke, stage, len(stage.seen("acked"))))
        stage.kill(broker)
        broker = stage.broker(NAIVE, default_queues=4)
    for part in stage.parts("p", "a", "broker"):
        stage.kill(part)
    stage.dump_log()
    report = stage.judge("faults=5", drained=False)
    assert report.verdict is Verdict.VIOLATION, complaint(report)
    assert {"S1", "S3", "S4", "B1"} & report.counts.keys(), complaint(report)
