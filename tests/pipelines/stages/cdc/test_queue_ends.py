"""Queues whose offsets start over: what the stage refuses, and what it accepts."""

from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.stages.cdc.replica_fixture import SCHEMA, Frame, Replica, Value, messages

from lanemq.model.errors import OrderError
from lanemq.pipelines import LastState
from lanemq.pipelines.batches import Batch


def row(name: str, **more: Any) -> Value:
    return {"id": 7, "name": name, **more}


def test_a_recreated_queue_is_refused(tmp_path: Path) -> None:
    replica = Replica(LastState(SCHEMA, ["id"]), tmp_path)
    replica.process(messages([("7", row(f"old {n}")) for n in range(60)]))
    with pytest.raises(OrderError, match=r"queue t/b/0 continues at offset 0 after 59.*sequence="):
        replica.process(messages([("7", row("new"))]))


def test_a_newer_message_at_the_last_offset_is_refused(tmp_path: Path) -> None:
    replica = Replica(LastState(SCHEMA, ["id"]), tmp_path)
    replica.process(messages([("7", row("old"))]))
    with pytest.raises(OrderError, match="offset 0 after 0"):
        replica.process(messages([("7", row("new"))]))


def test_the_lowest_and_the_highest_offset_of_all_tasks_count(tmp_path: Path) -> None:
    """A frame may have been divided in any way."""
    replica = Replica(LastState(SCHEMA, ["id"]), tmp_path)
    replica.process(messages([("7", row("b"))] * 5, first=5), messages([("7", row("a"))] * 5))
    with pytest.raises(OrderError, match="offset 9 after 9"):
        replica.process(messages([("7", row("d"))], first=12), messages([("7", row("c"))], first=9))


def test_a_repeated_batch_is_accepted(tmp_path: Path) -> None:
    stage = LastState(SCHEMA, ["id"])
    stage.open(None, tmp_path)  # type: ignore[arg-type]
    frame: Any = Frame(messages([("7", row("same"))]))
    first = stage.process(frame, Batch("q", 1024, 1)).outputs.table()
    assert stage.process(frame, Batch("q", 1024, 1)).outputs.table() == first
    stage.open(None, tmp_path)  # type: ignore[arg-type]
    assert stage.process(frame, Batch("q", 2048, 2)).outputs.table() == first, "a new run begins where Spark says"


def test_a_queue_is_compared_only_with_itself(tmp_path: Path) -> None:
    replica = Replica(LastState(SCHEMA, ["id"]), tmp_path)
    replica.process(messages([("7", row("old"))], first=50))
    replica.process(messages([("8", {"id": 8, "name": "other"})], queue=1))
    replica.process(messages([("7", row("newer"))], first=51))
    assert {key: found["name"] for key, found in replica.live.items()} == {7: "newer", 8: "other"}


def test_a_recreated_queue_is_accepted_with_a_sequence(tmp_path: Path) -> None:
    replica = Replica(LastState(SCHEMA, ["id"], sequence=["at"]), tmp_path)
    replica.process(messages([("7", row("old", at=n)) for n in range(60)]))
    replica.process(messages([("7", row("new", at=60))]))
    assert replica.live[7]["name"] == "new"


def test_a_later_run_refuses_a_recreated_queue(tmp_path: Path) -> None:
    """Otherwise every change of the new queue would lose, with only a warning."""
    Replica(LastState(SCHEMA, ["id"]), tmp_path).process(messages([("7", row(f"old {n}")) for n in range(60)]))
    after = Replica(LastState(SCHEMA, ["id"]), tmp_path)
    after.process(messages([("8", {"id": 8, "name": "other"})], queue=1))
    with pytest.raises(OrderError, match="queue t/b/0 continues at offset 3 after 59"):
        after.process(messages([("7", row("new"))], first=3))


def test_an_attempt_that_does_not_count_changes_nothing(tmp_path: Path) -> None:
    stage = LastState(SCHEMA, ["id"])
    stage.open(None, tmp_path)  # type: ignore[arg-type]
    far: Any = Frame(messages([("7", row("far"))], first=90))
    assert stage.process(far, Batch("q", 1024, 1)).state
    near: Any = Frame(messages([("7", row("near"))], first=5))
    stage.open(None, tmp_path)  # type: ignore[arg-type]
    assert stage.process(near, Batch("q", 2048, 2)).outputs.count() == 1


def test_repeated_messages_are_accepted(tmp_path: Path) -> None:
    """A member's queue may be read again from an earlier offset; its messages have their old store times."""
    replica, same = Replica(LastState(SCHEMA, ["id"]), tmp_path), messages([("7", row("same"))] * 3)
    replica.process(same)
    replica.process(same)
    assert replica.live[7]["name"] == "same"
