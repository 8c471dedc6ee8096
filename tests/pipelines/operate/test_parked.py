"""`lanemq.pipelines.parked`: held and parked keys, from Python."""

from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.stages.transitions import pipeline_fixture
from tests.pipelines.stages.transitions.pipeline_fixture import Sent

from lanemq.model.errors import StateLost, UsageError
from lanemq.pipelines import Hold, Park, ParquetSink, Pipeline, Project, Topic, parked
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint, stage_folder
from lanemq.pipelines.stages.transitions.operator_requests import Redrives, pending_requests

FAILS = {"n": 1, "fails": 99}


def stopped(folder: Path, policy: Any) -> pipeline_fixture.Pipeline:
    """A checkpoint in which key a is held or parked with two messages, and key b with one."""
    Checkpoint(folder, "orders").close()
    stage_folder(folder).mkdir(parents=True)
    pipeline = pipeline_fixture.Pipeline(stage_folder(folder), on_failure=policy)
    pipeline.process(Sent(0, 0, "a", FAILS), Sent(0, 1, "a", 2), Sent(0, 2, "b", FAILS), Sent(0, 3, "c", 4))
    return pipeline


def test_parked_keys_are_listed_shown_and_counted(tmp_path: Path) -> None:
    stopped(tmp_path, Park())
    lanes = parked(tmp_path)
    assert [(each.lane, len(each.messages)) for each in lanes.waiting()] == [("a", 2), ("b", 1)]
    assert lanes.counts() == {"parked": 2}
    shown = lanes.show("a")
    assert shown.held is not None
    assert "attempt 1 failed" in shown.held.reason
    assert lanes.show("c").held is None
    with pytest.raises(UsageError, match="'d' is unknown"):
        lanes.show("d")


def test_held_keys_are_listed_only_on_request(tmp_path: Path) -> None:
    stopped(tmp_path, Hold())
    lanes = parked(str(tmp_path))
    assert lanes.waiting() == []
    assert len(lanes.waiting(held=True)) == 2
    assert lanes.counts() == {"held": 2}


def test_a_request_is_carried_out_by_the_next_retry_pass(tmp_path: Path) -> None:
    pipeline = stopped(tmp_path, Park())
    lanes = parked(tmp_path)
    assert [each.lane for each in lanes.discard("a", first_only=True)] == ["a"]
    assert lanes.counts() == {"parked": 2}, "only requested so far"
    assert lanes.requested() == {"a": "discard_first"}
    pipeline.process_retry_pass()
    assert [each.lane for each in lanes.waiting()] == ["b"]
    assert len(pipeline.sink.dead_rows()) == 1
    assert [each.lane for each in lanes.redrive(everything=True)] == ["b"]
    pipeline.process_retry_pass()
    (left,) = lanes.waiting()
    assert left.lane == "b"


def test_a_request_for_a_key_that_is_not_held_is_refused(tmp_path: Path) -> None:
    stopped(tmp_path, Park())
    lanes = parked(tmp_path)
    for decide in (lanes.redrive, lanes.discard):
        with pytest.raises(UsageError, match="'c' is neither held nor parked"):
            decide("c")
        with pytest.raises(UsageError, match="give one key"):
            decide()
        with pytest.raises(UsageError, match="give one key"):
            decide("a", everything=True)
    assert pending_requests(stage_folder(tmp_path)) == []


def test_a_folder_in_the_place_of_a_request_is_refused(tmp_path: Path) -> None:
    (tmp_path / "requests" / "1-a.json").mkdir(parents=True)
    with pytest.raises(StateLost, match=r"1-a\.json is damaged"):
        pending_requests(tmp_path)
    (tmp_path / "redrives" / "asked" / "1-a.dead_letters").mkdir(parents=True)
    with pytest.raises(StateLost, match=r"1-a\.dead_letters is damaged"):
        Redrives(tmp_path).pending_dead_letters()


def test_parked_takes_a_pipeline_or_a_checkpoint_and_refuses_other_folders(tmp_path: Path) -> None:
    declared = Pipeline("orders", Topic("a:1", "t"), Project(["key"]), ParquetSink(tmp_path / "out"), tmp_path / "c")
    with pytest.raises(UsageError, match="was never started"):
        parked(declared)
    Checkpoint(tmp_path / "c", "orders").close()
    assert parked(declared).waiting(held=True) == []
    assert parked(declared).counts() == {}
    with pytest.raises(UsageError, match="is unknown"):
        parked(declared).show("a")
