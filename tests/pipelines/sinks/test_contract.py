"""What every sink promises, asked of every sink: each batch once, by the newest run only."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from tests.pipelines.sinks.conftest import ALL, FENCING, MERGING
from tests.pipelines.sinks.places import EVENTS, Died, Place, changes, dies_at, named

from lanemq.model.errors import Closed, InvalidOption, SinkFenced, UsageError
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.rows import FileRows

every = pytest.mark.parametrize("place", ALL, indirect=True)
fencing = pytest.mark.parametrize("place", FENCING, indirect=True)
merging = pytest.mark.parametrize("place", MERGING, indirect=True)

STEPS = 8
"""More than any sink has; the test says so if one grows longer."""


@every
def test_a_repeated_batch_adds_nothing(place: Place) -> None:
    rows = place.batch_rows(a=[1, 2], b=[3])
    sink = place.opened()
    assert sink.write(rows, named(1, 1024))
    assert not sink.write(rows, named(1, 1024))
    again = place.opened(epoch=2)
    again.write(rows, named(2, 1024))
    assert place.numbers() == [1, 2, 3]


@every
def test_rows_of_a_shard_keep_their_order(place: Place) -> None:
    place.opened().write(place.batch_rows(a=range(3_000), b=range(3_000, 6_000)), named(1, 0))
    for shard, first in (("a", 0), ("b", 3_000)):
        assert [row["n"] for row in place.events() if row["shard"] == shard] == list(range(first, first + 3_000))


@every
def test_an_empty_batch_is_applied_too(place: Place) -> None:
    """Or it would be asked for again at every start."""
    sink = place.opened()
    assert sink.write(place.batch_rows(a=[1]), named(1, 0))
    assert sink.write(place.batch_rows(a=[]), named(1, 1))
    assert sink.write(FileRows(place.batch_rows().schema, []), named(1, 2))
    assert sink.applied() == 2
    assert not sink.write(place.batch_rows(a=[]), named(1, 2))
    assert place.numbers() == [1]


@every
def test_numbers_may_have_gaps_and_never_go_back(place: Place) -> None:
    sink = place.opened()
    assert sink.applied() is None
    for number in (0, 1024, 1029, 9 * 1024):
        assert sink.write(place.batch_rows(a=[number]), named(1, number))
        assert sink.applied() == number
    assert not sink.write(place.batch_rows(a=[-1]), named(1, 1024))
    assert place.numbers() == [0, 1024, 1029, 9 * 1024]


@fencing
def test_the_number_is_there_after_the_sink_was_opened_again(place: Place) -> None:
    first = place.opened()
    first.write(place.batch_rows(a=[1]), named(1, 5))
    first.close()
    assert place.opened(epoch=1).applied() == 5
    assert place.opened(epoch=2).applied() == 5


@pytest.mark.parametrize("step", range(STEPS))
@every
def test_a_batch_that_died_at_any_step_is_there_once_after_its_repetition(place: Place, step: int) -> None:
    rows = place.batch_rows(a=[1, 2], b=[3])
    place.opened().write(place.batch_rows(a=[0]), named(1, 0))
    dying = place.opened()
    dies_at(dying, step)
    if _finishes(dying, rows):
        assert step > 0, "a sink without a step to die at"
        return
    dying.close()
    assert place.numbers() in ([0], [0, 1, 2, 3]), "completely or not at all"
    after = place.opened(epoch=2)
    after.write(rows, named(2, 1024))
    after.write(place.batch_rows(a=[4]), named(2, 2048))
    assert place.numbers() == [0, 1, 2, 3, 4]


def _finishes(sink: Any, rows: FileRows) -> bool:
    try:
        sink.write(rows, named(1, 1024))
    except Died:
        return False
    return True


@fencing
def test_a_replaced_run_is_refused_before_its_successor_has_written(place: Place) -> None:
    old = place.opened(epoch=1)
    place.opened(epoch=2)
    with pytest.raises(SinkFenced, match=r"run 1 .* replaced by run 2"):
        old.write(place.batch_rows(a=[1]), named(1, 0))
    assert place.numbers() == []


def copies(tmp_path: Path) -> tuple[Checkpoint, Checkpoint]:
    """A checkpoint that was copied while it was stopped; both are started."""
    Checkpoint(tmp_path / "one", "orders").close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    return Checkpoint(tmp_path / "one", "orders"), Checkpoint(tmp_path / "two", "orders")


@fencing
def test_of_two_copies_of_a_checkpoint_only_the_first_gets_the_sink(place: Place, tmp_path: Path) -> None:
    """Same query and numbers, other messages: each would take the other's batches for its own, and leave some out."""
    first, second = copies(tmp_path)
    assert first.query == second.query
    sink = place.opened(first.epoch, first.query, runs=first.runs)
    for _ in range(3):  # whatever its epoch is by then
        with pytest.raises(SinkFenced, match=r"belongs to run 2 of another copy of pipeline .* checkpoint"):
            place.opened(second.epoch, second.query, runs=second.runs)
        second.close()
        second = Checkpoint(tmp_path / "two", "orders")
    assert sink.write(place.batch_rows(a=[1]), named(first.epoch, 0, first.query))
    first.close()
    again = Checkpoint(tmp_path / "one", "orders")
    assert place.opened(again.epoch, again.query, runs=again.runs).applied() == 0
    again.close()
    second.close()
    assert place.numbers() == [1]


@fencing
def test_a_replaced_run_is_refused_even_what_is_there_already(place: Place) -> None:
    """It must stop, not believe that it is doing well."""
    old = place.opened(epoch=1)
    old.write(place.batch_rows(a=[1]), named(1, 0))
    place.opened(epoch=2)
    with pytest.raises(SinkFenced):
        old.write(place.batch_rows(a=[1]), named(1, 0))


@every
def test_a_replaced_run_is_refused_after_its_successor_has_written(place: Place) -> None:
    old = place.opened(epoch=1)
    old.write(place.batch_rows(a=[1]), named(1, 0))
    new = place.opened(epoch=2)
    new.write(place.batch_rows(a=[2]), named(2, 1))
    new.write(place.batch_rows(a=[3]), named(2, 2))
    with pytest.raises(SinkFenced):
        old.write(place.batch_rows(a=[2]), named(1, 1))
    assert place.numbers() == [1, 2, 3]


@pytest.mark.parametrize("place", ["delta", "parquet"], indirect=True)
def test_a_run_that_is_replaced_in_the_middle_of_its_write_is_refused(place: Place) -> None:
    """It looked before its successor came; only its commit can find out. (Databases hold a lock instead.)"""
    old = place.opened(epoch=1)
    successors: list[Any] = []
    old.reached = lambda step: successors or successors.append(place.opened(epoch=2))
    with pytest.raises(SinkFenced):
        old.write(place.batch_rows(a=[1], b=[2]), named(1, 0))
    assert successors[0].applied() is None
    assert successors[0].write(place.batch_rows(a=[1], b=[2]), named(2, 0))
    assert place.numbers() == [1, 2]


@fencing
def test_a_run_that_opens_late_is_refused(place: Place) -> None:
    place.opened(epoch=7)
    with pytest.raises(SinkFenced, match="replaced by run 7"):
        place.opened(epoch=6)


@fencing
def test_a_run_that_is_refused_for_its_columns_does_not_stop_the_one_that_works(place: Place) -> None:
    """A new version with a mistake in it must not take the old one down."""
    working = place.opened(epoch=1)
    with pytest.raises(InvalidOption, match="column n "):
        place.opened(epoch=2, schema=StructType([StructField("n", BinaryType())]))
    assert working.write(place.batch_rows(a=[1]), named(1, 0))


@fencing
def test_a_run_that_opens_late_adds_no_columns(place: Place) -> None:
    place.opened(epoch=7)
    with pytest.raises(SinkFenced):
        place.opened(epoch=6, schema=StructType([*EVENTS, StructField("late", BinaryType())]))
    place.opened(epoch=8, schema=StructType([*EVENTS, StructField("late", LongType())]))


@every
def test_two_pipelines_share_a_table(place: Place) -> None:
    one, other = place.opened(epoch=1, query="one"), place.opened(epoch=9, query="other")
    assert one.write(place.batch_rows(a=[1]), named(1, 5, "one"))
    assert other.write(place.batch_rows(a=[2]), named(9, 5, "other"))
    assert one.write(place.batch_rows(a=[3]), named(1, 6, "one"))
    assert (one.applied(), other.applied()) == (6, 5)
    assert place.numbers() == [1, 2, 3]


@every
def test_a_sink_takes_batches_of_its_own_run_only(place: Place) -> None:
    sink = place.opened(epoch=3)
    for batch in (named(2, 0), named(4, 0), named(3, 0, "another")):
        with pytest.raises(UsageError, match="does not belong"):
            sink.write(place.batch_rows(a=[1]), batch)
    sink.close()
    with pytest.raises(Closed):
        sink.write(place.batch_rows(a=[1]), named(3, 0))


@merging
def test_a_merge_keeps_the_newest_row_of_a_key(place: Place) -> None:
    sink = place.merging()
    sink.write(changes((1, "first", 10, False), (2, "other", 10, False)), named(1, 0))
    sink.write(changes((1, "newer", 11, False), (2, "older", 9, False), (3, "new", 1, False)), named(1, 1))
    sink.write(changes((1, "same sequence", 11, False)), named(1, 2))
    assert place.changed() == {1: "newer", 2: "other", 3: "new"}
    assert sink.applied() == 2


@merging
def test_rows_that_lose_a_merge_are_counted_and_told(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A sequence that began again makes every change lose; a table that no longer changes must not look well."""
    sink = place.merging()
    sink.write(changes((1, "first", 10, False), (2, "first", 10, False)), named(1, 0))
    assert (sink.last_stale, caplog.messages) == (0, [])
    sink.write(changes((1, "newer", 11, False), (2, "older", 9, False), (3, "new", 1, False)), named(1, 1))
    assert sink.last_stale == 1
    assert "1 of 3 rows were left out because they are older than the table's" in caplog.messages[-1]
    assert "sequence=" in caplog.messages[-1]
    sink.write(changes((1, "begun again", 0, False), (2, None, 10, True)), named(1, 2))
    assert sink.last_stale == 2, "none of them newer: Delta has nothing to commit, and counts all the same"
    assert sink.write(changes((1, "newest", 12, False)), named(1, 3))
    assert sink.last_stale == 0


@merging
def test_a_repeated_merge_counts_no_row_as_older(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Its rows are in the table; they did not lose."""
    rows = changes((1, "one", 5, False), (2, "two", 5, False))
    sink = place.merging()
    sink.write(rows, named(1, 0))
    sink.write(changes((1, "late", 4, False)), named(1, 1))
    caplog.clear()
    assert not sink.write(rows, named(1, 0))
    assert sink.last_stale == 0
    again = place.merging(epoch=2)
    assert not again.write(rows, named(2, 0))
    assert (again.last_stale, caplog.messages) == (0, [])


@merging
def test_a_deletion_beats_a_change_that_is_older_and_arrives_later(place: Place) -> None:
    sink = place.merging()
    sink.write(changes((1, "there", 10, False)), named(1, 0))
    sink.write(changes((1, None, 12, True), (2, None, 5, True)), named(1, 1))
    sink.write(changes((1, "late", 11, False), (2, "late", 4, False)), named(1, 2))
    assert place.changed() == {}
    sink.write(changes((1, "again", 13, False)), named(1, 3))
    assert place.changed() == {1: "again"}


@merging
def test_a_deletion_that_is_older_than_the_row_deletes_nothing(place: Place) -> None:
    sink = place.merging()
    sink.write(changes((1, "there", 10, False)), named(1, 0))
    sink.write(changes((1, None, 9, True)), named(1, 1))
    assert place.changed() == {1: "there"}


@merging
def test_a_repeated_merge_changes_nothing(place: Place) -> None:
    first = place.merging()
    first.write(changes((1, "one", 1, False)), named(1, 0))
    first.write(changes((1, "two", 2, False)), named(1, 1))
    second = place.merging(epoch=2)
    assert not second.write(changes((1, "one", 1, False)), named(2, 0))
    assert second.write(changes(), named(2, 2))
    assert second.applied() == 2
    with pytest.raises(SinkFenced):
        first.write(changes((1, "three", 3, False)), named(1, 3))
    assert place.changed() == {1: "two"}


@pytest.mark.parametrize("step", range(STEPS))
@merging
def test_a_merge_that_died_at_any_step_is_completed_by_its_repetition(place: Place, step: int) -> None:
    place.merging().write(changes((1, "old", 1, False), (2, "old", 1, False)), named(1, 0))
    rows = changes((1, "new", 2, False), (2, None, 2, True), (3, "new", 2, False))
    dying = place.merging()
    dies_at(dying, step)
    try:
        dying.write(rows, named(1, 1))
    except Died:
        dying.close()
        assert place.changed() in ({1: "old", 2: "old"}, {1: "new", 3: "new"})
        place.merging(epoch=2).write(rows, named(2, 1))
    assert place.changed() == {1: "new", 3: "new"}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (changes((1, "a", 1, False), (1, "b", 2, False)), "twice"),
        (changes((1, "a", None, False)), "no _sequence"),  # type: ignore[arg-type]
        (changes((1, "a", 1, None)), "no _deleted"),  # type: ignore[arg-type]
    ],
)
@merging
def test_rows_without_one_right_answer_are_refused_before_anything_is_written(
    place: Place, rows: Any, said: str
) -> None:
    sink = place.merging()
    with pytest.raises(UsageError, match=said):
        sink.write(rows, named(1, 0))
    assert sink.applied() is None
    assert place.changed() == {}


@merging
def test_old_deletions_can_be_purged(place: Place) -> None:
    sink = place.merging()
    sink.write(changes((1, None, 5, True), (2, None, 6, True), (3, "there", 1, False)), named(1, 0))
    assert sink.purge_tombstones(6) == 1
    sink.write(changes((1, "back", 4, False), (2, "late", 4, False)), named(1, 1))
    assert place.changed() == {1: "back", 3: "there"}
