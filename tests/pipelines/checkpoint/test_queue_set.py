"""A topic that gets more queues, or fewer, does not silently separate keys from their state."""

import logging
from pathlib import Path

import pytest

from lanemq.model.errors import InvalidOption, OrderError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.pipelines import LastState, Project, Transitions
from lanemq.pipelines.checkpoint.queues import QueueSet
from lanemq.pipelines.checkpoint.run_log import RunLog
from lanemq.spark.offsets import Positions


def positions(*queues: str) -> Positions:
    found: Positions = {}
    for name in queues:
        topic, broker, number = name.split("/")
        found[MessageQueue(topic, broker, int(number))] = QueueOffset(7)
    return found


def test_new_queues_of_a_known_topic_are_refused_until_they_are_gone(tmp_path: Path) -> None:
    log = RunLog(tmp_path, lambda runs: 1)
    QueueSet(log, "fail").check(positions("t/b/0", "t/b/1"))
    again = QueueSet(log, "fail")
    again.check(positions("t/b/0", "t/b/1"))
    for _ in range(2):
        with pytest.raises(OrderError, match=r"topic t had 2 queues and now has b/2, c/0 too .* on_queue_change"):
            again.check(positions("t/b/0", "t/b/1", "t/b/2", "t/c/0"))
    again.check(positions("t/b/0", "t/b/1"))


def test_fewer_queues_of_a_known_topic_are_refused(tmp_path: Path) -> None:
    """A topic was created again: its keys are in other queues, where they have no state."""
    log = RunLog(tmp_path, lambda runs: 1)
    QueueSet(log, "fail").check(positions("t/b/0", "t/b/1", "u/b/0"))
    again = QueueSet(log, "fail")
    for _ in range(2):
        with pytest.raises(OrderError, match=r"topic t had 2 queues and b/1 is gone .* on_queue_change"):
            again.check(positions("t/b/0", "u/b/0"))
    again.check(positions("t/b/0", "t/b/1")), "a topic that is gone has no keys"


def test_a_new_topic_of_a_pattern_is_accepted_and_remembered(tmp_path: Path) -> None:
    known = QueueSet(RunLog(tmp_path, lambda runs: 1), "fail")
    known.check(positions("t/b/0"))
    known.check(positions("t/b/0", "u/b/0"))
    with pytest.raises(OrderError, match="topic u had 1 queues"):
        QueueSet(RunLog(tmp_path, lambda runs: 1), "fail").check(positions("t/b/0", "u/b/0", "u/b/1"))


def test_continue_accepts_new_queues_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = QueueSet(RunLog(tmp_path, lambda runs: 1), "continue")
    known.check(positions("t/b/0"))
    with caplog.at_level(logging.WARNING):
        known.check(positions("t/b/0", "t/b/1"))
        known.check(positions("t/b/0", "t/b/1"))
        known.check(positions("t/b/1"))
        known.check(positions("t/b/1"))
    assert [record.getMessage().count("continuing") for record in caplog.records] == [1, 1]
    QueueSet(RunLog(tmp_path, lambda runs: 1), "fail").check(positions("t/b/1"))


def test_only_stages_that_depend_on_queues_check_them() -> None:
    def step(state: object, event: object) -> tuple[object, list[dict[str, object]]]:
        return state, []

    def transitions(**options: object) -> Transitions:
        return Transitions(step=step, outputs="a string", **options)  # type: ignore[arg-type]

    assert transitions().on_queue_change == "fail"
    assert transitions(on_queue_change="continue").on_queue_change == "continue"
    assert transitions(shards=4).on_queue_change is None
    assert LastState("id bigint", ["id"]).on_queue_change == "fail"
    assert LastState("id bigint", ["id"], sequence=["n"]).on_queue_change is None
    assert getattr(Project(), "on_queue_change", None) is None
    with pytest.raises(InvalidOption, match="on_queue_change='ignore'"):
        transitions(on_queue_change="ignore")
