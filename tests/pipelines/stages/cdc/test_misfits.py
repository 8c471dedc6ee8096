"""Misfits leave a trace: one warning per run and column, and totals for `lanemq pipeline status`."""

from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.stages.cdc.replica_fixture import Replica, messages

from lanemq.pipelines import LastState
from lanemq.pipelines.stages.cdc.replica_state import read_replica_state


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


@pytest.mark.parametrize("other", ["double", "decimal(10,2)"])
def test_a_warning_shows_a_fraction_as_it_was_sent(tmp_path: Path, other: str) -> None:
    replica = Replica(LastState(f"id bigint, amount int, other {other}", ["id"]), tmp_path)
    replica.process(rows(1.5))
    assert read_replica_state(replica.state).misfits["amount"].first == "1.5"


def test_status_has_the_misfits_of_all_runs_and_a_repeated_batch_counts_once(tmp_path: Path) -> None:
    replica = Replica(stage(), tmp_path)
    first, second = rows("abc", "def"), rows("ghi", first=2)
    replica.process(first)
    replica.repeat(first)
    replica.process(second)
    replica.repeat(second)
    assert not replica.dead
    (found,) = read_replica_state(replica.state).misfits.items()
    column, misfits = found
    assert (
        misfits.line(column) == "3 values of the column amount did not fit double and became null; the first was 'abc'"
    )


CHANGED = {"single": 16777217, "large": 1e39, "moment": "2024-01-31T12:00:00.000000001", "number": True}
"""By column, a value that would become another one."""


def replica_of_changed(folder: Path, **options: Any) -> Replica:
    columns = "id bigint, single float, large float, moment timestamp, number int"
    replica = Replica(LastState(columns, ["id"], **options), folder)
    replica.process(messages([(str(at), {"id": at, name: CHANGED[name]}) for at, name in enumerate(CHANGED)]))
    return replica


def test_a_value_that_the_column_would_change_is_a_misfit(tmp_path: Path) -> None:
    replica = replica_of_changed(tmp_path)
    assert [replica.live[at][name] for at, name in enumerate(CHANGED)] == [None] * 4
    misfits = read_replica_state(replica.state).misfits
    assert {name: each.count for name, each in misfits.items()} == dict.fromkeys(CHANGED, 1)


def test_a_value_that_the_column_would_change_is_a_dead_letter_if_misfits_are(tmp_path: Path) -> None:
    replica = replica_of_changed(tmp_path, misfits="dead_letter")
    assert not replica.live
    assert [name in each["reason"] for name, each in zip(CHANGED, replica.dead, strict=True)] == [True] * 4


def test_true_and_false_are_no_keys_of_rows(tmp_path: Path) -> None:
    replica = Replica(stage(), tmp_path)
    replica.process(rows(7, 8))
    replica.process(messages([("a", {"id": True, "amount": 9}), ("b", {"id": False, "amount": 9})], first=2))
    assert {key: row["amount"] for key, row in replica.live.items()} == {0: 7, 1: 8}
    assert [each["reason"] for each in replica.dead] == ["column id: the key is missing or does not fit bigint"] * 2


def test_rows_that_fit_leave_no_misfits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica(stage(), tmp_path)
    replica.process(rows(1, 2.5, None))
    assert (read_replica_state(replica.state).misfits, caplog.messages) == ({}, [])


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
    replica.process(messages([("3", b"{")], first=2))
    assert "1 message could not be understood and became a dead letter, the first at " in caplog.messages[-1]
