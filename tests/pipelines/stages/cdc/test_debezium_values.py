"""Default values of Debezium's connectors never become wrong values, and never replace good ones by null."""

import json
from base64 import b64encode
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipelines.stages.cdc.replica_fixture import Replica, Value, messages
from tests.pipelines.stages.cdc.test_formats import debezium

from lanemq.model.errors import OrderError
from lanemq.pipelines import LastState
from lanemq.pipelines.stages.cdc.formats.debezium import UNAVAILABLE
from lanemq.pipelines.stages.cdc.meanings import precise

COLUMNS = "id bigint, note string, raw binary, tags array<string>, more map<string,string>, price decimal(10,2)"
WHOLE = {"id": 1, "note": "long", "raw": "aGk=", "tags": ["a"], "more": {"a": "b"}, "price": "1.50"}
MARKS = [
    ("note", UNAVAILABLE),
    ("raw", b64encode(UNAVAILABLE.encode()).decode()),
    ("tags", [UNAVAILABLE]),
    ("more", {UNAVAILABLE: UNAVAILABLE}),
    ("price", UNAVAILABLE),
]


def stage(columns: str = COLUMNS, **options: Any) -> LastState:
    return LastState(columns, ["id"], **options)


@pytest.mark.parametrize("misfits", ["null", "dead_letter"])
@pytest.mark.parametrize("fold_first", [None, False])
@pytest.mark.parametrize(("name", "mark"), MARKS)
def test_a_change_that_leaves_a_column_out_is_a_dead_letter_and_the_row_stays(
    tmp_path: Path, name: str, mark: Any, fold_first: bool | None, misfits: Any
) -> None:
    """Null in place of the stored value would look like data."""
    replica = Replica(stage(format="debezium", fold_first=fold_first, misfits=misfits), tmp_path)
    replica.process(messages([('{"id": 1}', debezium("c", None, WHOLE))] * 3))
    before = replica.live
    partly = debezium("u", None, WHOLE | {name: mark})
    results = replica.process(messages([('{"id": 1}', partly)] * 3, first=3))
    assert replica.live == before
    assert f"the source left {name} out" in replica.dead[0]["reason"]
    assert results.outputs.count() == 0
    assert results.counts["misfits"] == 0


@pytest.mark.parametrize("fold_first", [None, False])
def test_the_newest_whole_change_counts_before_one_that_leaves_a_column_out(
    tmp_path: Path, fold_first: bool | None
) -> None:
    partly = WHOLE | {"note": UNAVAILABLE}
    rows = [WHOLE | {"price": "1"}, WHOLE | {"price": "2"}, partly | {"price": "3"}, partly | {"price": "4"}]
    replica = Replica(stage(fold_first=fold_first), tmp_path)
    replica.process(messages([*(('{"id": 1}', row) for row in rows), ('{"id": 2}', WHOLE | {"id": 2})]))
    assert {key: row["price"] for key, row in replica.live.items()} == {1: Decimal("2.00"), 2: Decimal("1.50")}
    assert [letter["queue_offset"] for letter in replica.dead] == [2, 3]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("fold_first", [None, False])
@pytest.mark.parametrize(("misfits", "wrong"), [("null", {"note": UNAVAILABLE}), ("dead_letter", {"price": "much"})])
def test_a_row_whose_key_changed_is_deleted_under_its_old_key(
    tmp_path: Path, misfits: Any, wrong: Any, fold_first: bool | None, together: bool
) -> None:
    """Even if the new row is poison, and wherever the batch ends: no later change would delete the old row."""
    replica = Replica(stage(format="debezium", one_queue=True, fold_first=fold_first, misfits=misfits), tmp_path)
    replica.process(messages([('{"id":2}', debezium("c", None, WHOLE | {"id": 2}))]))
    pairs = [('{"id":1}', debezium("u", {"id": 2}, WHOLE | wrong)), *[('{"id":1}', debezium("u", None, WHOLE))] * 3]
    if together:
        replica.process(messages(pairs, first=1))
    else:
        assert replica.process(messages(pairs[:1], first=1)).counts["key_changes"] == 1
        assert (replica.live, replica.tombstones()) == ({}, {2})
        assert replica.dead[0]["reason"].endswith("; the row of its old key is deleted")
        replica.process(messages(pairs[1:], first=2))
    assert (set(replica.live), replica.tombstones()) == ({1}, {2})


def test_a_change_of_key_that_comes_last_is_counted_once(tmp_path: Path) -> None:
    """All messages of its key are then read again."""
    replica = Replica(stage(format="debezium", one_queue=True), tmp_path)
    moved = debezium("u", {"id": 2}, WHOLE | {"note": UNAVAILABLE})
    results = replica.process(messages([*[('{"id":1}', debezium("u", None, WHOLE))] * 3, ('{"id":1}', moved)]))
    assert (set(replica.live), replica.tombstones(), len(replica.dead)) == ({1}, {2}, 1)
    assert (results.counts["key_changes"], results.counts["poison"]) == (1, 1)


def test_an_incomplete_change_of_key_without_a_sequence_is_refused(tmp_path: Path) -> None:
    """Its deletion counts, so it needs an order like any other change of key."""
    replica = Replica(stage(format="debezium"), tmp_path)
    with pytest.raises(OrderError, match="changes of a row's key"):
        replica.process(messages([('{"id":1}', debezium("u", {"id": 2}, WHOLE | {"note": UNAVAILABLE}))]))


def test_a_change_to_no_key_is_poison_and_deletes_nothing(tmp_path: Path) -> None:
    replica = Replica(stage(format="debezium", one_queue=True), tmp_path)
    replica.process(messages([(None, debezium("u", {"id": 2}, WHOLE | {"id": "x", "note": UNAVAILABLE}))]))
    assert (replica.live, replica.tombstones()) == ({}, set())
    assert "column id: the key is missing" in replica.dead[0]["reason"]


@pytest.mark.parametrize("wrong", [0, 1])
def test_the_rows_of_a_message_change_together_or_not_at_all(tmp_path: Path, wrong: int) -> None:
    """One must not be deleted while another takes its key."""
    rows: list[dict[str, Any]] = [{"id": "3", "note": "a"}, {"id": "2", "note": "b"}]
    rows[wrong]["price"] = "much"
    event = {"type": "UPDATE", "table": "t", "data": rows, "old": [{"id": "2"}, {"id": "1"}]}
    replica = Replica(stage(format="canal", one_queue=True, misfits="dead_letter"), tmp_path)
    assert replica.process(messages([(None, event)])).outputs.count() == 0
    assert len(replica.dead) == 1


def test_a_column_that_is_not_declared_may_be_left_out(tmp_path: Path) -> None:
    replica = Replica(stage("id bigint, price decimal(10,2)"), tmp_path)
    replica.process(messages([("1", WHOLE | {"note": UNAVAILABLE})]))
    assert replica.live == {1: {"id": 1, "price": Decimal("1.50")}}
    assert not replica.dead


def precisely(number: int) -> str:
    return b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38))
def test_precise_decimals_keep_sign_and_every_digit(number: int, scale: int) -> None:
    [found] = precise([precisely(number)], scale)
    assert found.as_tuple() == Decimal(f"{number}E{-scale}").as_tuple()


def test_base64_decimals_are_decoded_only_if_declared(tmp_path: Path) -> None:
    """`1234` is valid Base64 too; only the declaration says which it is."""
    pairs: list[tuple[str | None, Value]] = [
        (str(key), {"id": key, "price": price})
        for key, price in enumerate([precisely(12345), precisely(-5), "1234", {"scale": 1, "value": precisely(15)}, 7])
    ]
    replica = Replica(stage("id bigint, price decimal(10,2)", decimals="base64"), tmp_path / "base64")
    replica.process(messages(pairs))
    unscaled = int.from_bytes(bytes.fromhex("d76df8"), "big", signed=True)
    wanted = ["123.45", "-0.05", str(Decimal(unscaled) / 100), "1.50", "7.00"]
    assert [str(row["price"]) for row in replica.live.values()] == wanted
    replica = Replica(stage("id bigint, price decimal(10,2)"), tmp_path / "text")
    found = replica.process(messages(pairs))
    assert [row["price"] for row in replica.live.values()] == [None, None, Decimal(1234), None, Decimal(7)]
    assert found.counts["misfits"] == 3


@pytest.mark.parametrize(
    "price", ["?", "AAA", "", "A" * 4000, {"scale": "1", "value": "AQ=="}, {"scale": 10**9, "value": "AQ=="}, {}]
)
def test_an_invalid_base64_decimal_is_null_and_counted(tmp_path: Path, price: Any) -> None:
    replica = Replica(stage("id bigint, price decimal(10,2)", decimals="base64"), tmp_path)
    found = replica.process(messages([("1", {"id": 1, "price": price})]))
    assert replica.live == {1: {"id": 1, "price": None}}
    assert found.counts["misfits"] == 1


def test_every_timestamp_may_have_its_own_unit(tmp_path: Path) -> None:
    """PostgreSQL uses microseconds, MySQL the precision of the column, and Debezium itself milliseconds."""
    units: Any = {"a": "us", "b": "s", "c": "ns"}
    replica = Replica(stage("id bigint, a timestamp, b timestamp, c timestamp, d timestamp", time_unit=units), tmp_path)
    second = 1_700_000_000
    row = {"id": 1, "a": second * 10**6, "b": second, "c": second * 10**9, "d": second * 1000}
    replica.process(messages([("1", json.dumps(row).encode())]))
    moment = datetime.fromtimestamp(second, UTC)
    assert [replica.live[1][name] for name in "abcd"] == [moment] * 4
