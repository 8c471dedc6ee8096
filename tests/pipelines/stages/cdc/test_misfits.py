"""Misfits leave a trace: one warning per run and column, and totals for `lanemq pipeline status`."""

from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.stages.cdc.replica_fixture import Replica, messages

from lanemq.pipelines.stages.cdc import LastState
from lanemq.pipelines.stages.cdc.misfits import read_misfits


def stage(**options: Any) -> LastState:
    return LastState("id bigint, amount double, day date", ["id"], **options)


def rows(*amounts: object, first: int = 0, queue: int = 0) -> Any:
    pairs = [(f"{first + at}", {"id": first + at, "amount": amount}) for at, amount in enumerate(amounts)]
    return messages(pairs, first=first, queue=queue)


def test_a_run_warns_once_about_each_column_with_its_type_and_first_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replica = Replica(stage(), tmp_path)
    replica.process(rows("abc", 1.5, "later"), rows("other", first=7, queue=1))
    replica.process(rows("again", first=3))
    (said,) = [each for each in caplog.messages if "did not fit" in each]
    assert "3 values of the column amount did not fit double and became null; the first was 'abc'." in said
    assert "misfits='dead_letter'" in said
    replica = Replica(stage(), tmp_path)
    replica.process(messages([("9", {"id": 9, "amount": 1, "day": "someday"})], first=9))
    assert "1 value of the column day did not fit date" in caplog.messages[-1]


def test_status_has_the_misfits_of_all_runs_and_a_repeated_batch_counts_once(tmp_path: Path) -> None:
    replica = Replica(stage(), tmp_path)
    first, second = rows("abc", "def"), rows("ghi", first=2)
    replica.process(first)
    replica.repeat(first)
    replica.process(second)
    replica.repeat(second)
    assert not replica.dead
    (found,) = read_misfits(tmp_path).items()
    column, misfits = found
    assert (
        misfits.line(column) == "3 values of the column amount did not fit double and became null; the first was 'abc'"
    )


def test_rows_that_fit_leave_no_misfits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Replica(stage(), tmp_path).process(rows(1, 2.5, None))
    assert (read_misfits(tmp_path), caplog.messages) == ({}, [])


def test_dead_letters_are_reported_with_the_first_reason_and_the_command_that_lists_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = tmp_path / "orders"
    replica = Replica(stage(), checkpoint / "_lanemq" / "stage")
    replica.process(messages([("1", b"{"), ("2", {"amount": 2})]))
    (said,) = caplog.messages
    assert "2 messages could not be understood and became dead letters, the first at t queue b/0 offset 0: " in said
    assert "not readable: " in said
    assert said.endswith(f"`lanemq pipeline dead-letters list {checkpoint}` lists them")
