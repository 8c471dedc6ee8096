"""A sink that has batches of a pipeline is refused to another checkpoint of the same pipeline."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.pipelines.checkpoint.test_checkpoint import used_by_spark
from tests.pipelines.sinks.conftest import CHECKPOINTED
from tests.pipelines.sinks.runs import Runs, emptied
from tests.pipelines.sinks.targets import Target

from lanemq.model.errors import SinkFenced, StateLost

exact = pytest.mark.parametrize("target", CHECKPOINTED, indirect=True)


def lose_checkpoint(runs: Runs) -> None:
    runs.crash()
    shutil.rmtree(runs.folder)
    runs.folder.mkdir()


@exact
def test_a_deleted_checkpoint_is_refused_at_every_start_and_adds_no_row(runs: Runs) -> None:
    for number in range(2):
        runs.do(number)
    lose_checkpoint(runs)
    for _ in range(2):
        with pytest.raises(StateLost, match=r"another checkpoint of pipeline 'orders'.*--new-checkpoint") as error:
            runs.do(0)
        assert str(runs.make()) in str(error.value)
    assert runs.target.numbers() == [0, 1]


@exact
def test_without_the_name_of_the_pipeline_a_deleted_checkpoint_doubles_its_rows(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: this is what the owner of a sink prevents."""
    kind = type(runs.make())
    named = kind.open
    monkeypatch.setattr(kind, "open", lambda sink, run: named(sink, replace(run, pipeline="")))
    for number in range(2):
        runs.do(number)
    lose_checkpoint(runs)
    for number in range(2):
        runs.do(number)
    assert runs.target.numbers() == [0, 0, 1, 1]


@exact
def test_new_checkpoint_is_needed_once_and_keeps_the_rows(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    runs.do(0)
    lose_checkpoint(runs)
    with caplog.at_level(logging.WARNING):
        runs.start(new_checkpoint=True)
    assert "continues with a new checkpoint" in caplog.text
    runs.do(0)
    runs.do(1)
    assert runs.target.numbers() == [0, 0, 1]


@exact
def test_after_new_checkpoint_the_old_one_may_write_nothing(runs: Runs, target: Target, tmp_path: Path) -> None:
    runs.do(0)
    old = runs.start()
    other = Runs(target, tmp_path / "other")
    other.start(new_checkpoint=True)
    used_by_spark(runs.folder, planned=1, done=0)
    with pytest.raises(SinkFenced):
        old.process_batch(None, 1)  # type: ignore[arg-type]
    other.do(0)
    with pytest.raises(StateLost):
        runs.start()
    other.crash()
    assert target.numbers() == [0, 0]


@exact
def test_an_empty_sink_takes_a_new_checkpoint(runs: Runs) -> None:
    runs.do(0)
    lose_checkpoint(runs)
    emptied(runs.target)
    runs.do(0)
    runs.do(1)
    assert runs.target.numbers() == [0, 1]


@exact
def test_a_sink_without_batches_takes_a_new_checkpoint(runs: Runs) -> None:
    """As after a first start that failed, where it is usual to delete the checkpoint and to try again."""
    runs.start()
    lose_checkpoint(runs)
    runs.do(0)
    assert runs.target.numbers() == [0]


@exact
def test_of_two_new_checkpoints_that_open_an_empty_sink_one_may_write(
    runs: Runs, target: Target, tmp_path: Path
) -> None:
    first = runs.start()
    other = Runs(target, tmp_path / "other")
    second = other.start()
    refused = 0
    for each, processor in ((other, second), (runs, first)):
        used_by_spark(each.folder, planned=0, done=-1)
        try:
            processor.process_batch(None, 0)  # type: ignore[arg-type]
        except (SinkFenced, StateLost):
            refused += 1
    other.crash()
    assert refused == 1
    assert target.numbers() == [0]


@exact
def test_pipelines_with_different_names_share_a_sink(runs: Runs, target: Target, tmp_path: Path) -> None:
    other = Runs(target, tmp_path / "other", "returns")
    for number in range(2):
        runs.do(number)
        other.do(number)
    other.crash()
    assert target.numbers() == [0, 0, 1, 1]
