"""The files of a stage: what can be repeated from them, what is removed, and what is noticed when missing."""

from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.stages.transitions.pipeline_fixture import QUERY, Pipeline, Sent, messages

from lanemq.model.errors import StateLost
from lanemq.pipelines import Hold, Park, StateLimits
from lanemq.pipelines.batches import Batch, batch_number
from lanemq.pipelines.operate.parked import list_parked, show
from lanemq.pipelines.stages.transitions.shard import CACHE, KEPT_BATCHES, Shard, ShardFiles

HOLD = Hold(retries=2, first=0.1, max=1.0)


def test_missing_state_is_noticed(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.process(*messages(3))
    next((tmp_path / "state").rglob("*.change")).unlink()
    CACHE._shards.clear()
    with pytest.raises(StateLost, match="incomplete"):
        pipeline.process(*messages(3, first=3))
    pipeline.stage.continue_from("")
    with pytest.raises(StateLost, match="no state to start from"):
        pipeline.stage.process(pipeline.frame([]), Batch(QUERY, batch_number(1), 1))


def test_state_of_another_query_is_refused(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.process(*messages(3))
    with pytest.raises(StateLost, match="query query-1"):
        pipeline.stage.process(pipeline.frame([]), Batch("query-2", batch_number(1), 1))


def test_old_files_are_removed_and_a_batch_that_the_sink_lacks_can_be_repeated(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, limits=StateLimits(snapshot_every=3))
    for number in range(20):
        pipeline.process(*messages(3, first=3 * number), settle=number < 19)
    files = sorted(path.name for path in (tmp_path / "state").rglob("*.*") if path.is_file())
    assert len(files) <= 10
    assert [path.name for path in (tmp_path / "work").iterdir()] == [str(batch_number(19))]
    assert len(list((tmp_path.parent / "log").iterdir())) <= 2
    CACHE._shards.clear()
    pipeline.restart()
    counts = pipeline.process(*messages(3, first=57), again=True)
    assert counts["applied"] == 3
    assert show(tmp_path, "key-0-0")[0].state == {"seen": 20}


def test_retry_passes_without_new_messages_remove_old_files_too(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, on_failure=Hold(retries=-1, first=0.001, max=0.001))
    pipeline.process(*messages(30, keys=30), Sent(0, 30, "x", {"n": 1, "fails": 60}))
    for _ in range(59):
        pipeline.clock.time += 10
        pipeline.process_retry_pass()
    assert len([path for path in (tmp_path / "state").rglob("*") if path.is_file()]) <= 140


def test_the_last_retry_pass_and_the_batch_after_many_can_be_repeated(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, on_failure=HOLD, limits=StateLimits(snapshot_every=1))
    pipeline.process(Sent(0, 0, "a", {"n": 0, "fails": 2}))
    for _ in range(2):
        pipeline.clock.time += 1_000
        pipeline.process_retry_pass()
    assert pipeline.outputs("a") == [0]
    CACHE._shards.clear()
    pipeline.restart()
    assert pipeline.process(Sent(0, 0, "a", {"n": 0, "fails": 2}), again=True)["repeated_batches"] == 1
    pipeline.process(Sent(0, 1, "a", 1), settle=False)
    CACHE._shards.clear()
    pipeline.restart()
    pipeline.process(Sent(0, 1, "a", 1), again=True)
    assert [row["seen"] for row in pipeline.sink.rows()] == [1, 2]


def test_a_batch_followed_by_retry_passes_is_not_computed_again(tmp_path: Path) -> None:
    """The driver died before Spark recorded the batch, but the sinks had its rows and a retry pass followed."""
    pipeline = Pipeline(tmp_path, on_failure=HOLD)
    batch = [Sent(0, 0, "a", {"n": 0, "fails": 1})]
    pipeline.process(*batch)
    pipeline.clock.time += 100
    pipeline.process_retry_pass()
    pipeline.restart()
    pipeline.process(*batch, again=True)
    pipeline.process(Sent(0, 1, "a", 1))
    assert pipeline.outputs("a") == [0, 1]
    assert [row["seen"] for row in pipeline.sink.rows()] == [1, 2]


def test_listing_lanes_reads_a_newer_manifest_if_files_disappear_while_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running pipeline removes files of older manifests, also while a reader is between two steps."""
    pipeline = Pipeline(tmp_path, on_failure=Park())
    pipeline.process(Sent(0, 0, "k", {"n": 0, "fails": 9}))
    real, failed = ShardFiles.load, []

    def load(files: ShardFiles, version: Any) -> Shard:
        if not failed:
            failed.append(version)
            pipeline.process(Sent(0, 1, "other", 1))
            raise StateLost("removed by the running pipeline")
        return real(files, version)

    monkeypatch.setattr(ShardFiles, "load", load)
    assert [lane.key for lane in list_parked(tmp_path)] == ["k"]
    failed.clear()
    assert show(tmp_path, "k")[0].held is not None


def test_listing_lanes_reports_state_that_is_lost(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.process(*messages(3))
    for path in (tmp_path / "state").rglob("*.change"):
        path.unlink()
    with pytest.raises(StateLost, match="incomplete"):
        show(tmp_path, "key-0-0")


def test_a_worker_drops_cached_shards_that_others_change(tmp_path: Path) -> None:
    """Otherwise each worker would keep the state of every queue it ever had."""
    pipeline = Pipeline(tmp_path)
    CACHE._shards.clear()
    pipeline.process(*messages(1, queue=0), *messages(1, queue=1))
    before = dict(CACHE._shards)
    CACHE._shards.clear()
    for number in range(1, KEPT_BATCHES + 2):
        pipeline.process(*messages(1, first=number, queue=1))
    CACHE._shards.update(before)  # as in the worker of the first batch
    pipeline.process(*messages(1, first=1, queue=0))
    assert [key[2] for key in CACHE._shards] == ["orders/broker-a/0"]
