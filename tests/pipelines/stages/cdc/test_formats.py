"""Events as in the documentation of each format, read into rows."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.stages.cdc.replica_fixture import SCHEMA, Replica, Value, messages

from lanemq.pipelines import LastState

ANNE = {"id": 1, "name": "Anne", "amount": 1.5}
LSN = ("source.lsn",)


def debezium(op: str, before: Any, after: Any, **source: Any) -> dict[str, Any]:
    return {
        "before": before,
        "after": after,
        "source": {"version": "2.7.0", "connector": "postgresql", "db": "shop", "schema": "public", "table": "people"}
        | source,
        "op": op,
        "ts_ms": 1700000000000,
    }


def enveloped(event: Any) -> dict[str, Any]:
    return {"schema": {"type": "struct", "fields": [], "optional": False}, "payload": event}


def canal(kind: str, data: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    event = {
        "data": data,
        "database": "shop",
        "es": 1700000000000,
        "id": 7,
        "isDdl": False,
        "mysqlType": {"id": "bigint", "name": "varchar(9)", "amount": "double"},
        "old": old,
        "pkNames": ["id"],
        "sql": "",
        "sqlType": {"id": -5},
        "table": "people",
        "ts": 1700000000100,
        "type": kind,
    }
    return event | more


def maxwell(kind: str, data: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    event = {
        "database": "shop",
        "table": "people",
        "type": kind,
        "ts": 1700000000,
        "xid": 9,
        "xoffset": 0,
        "data": data,
    }
    return event | ({"old": old} if old else {}) | more


def followed(tmp_path: Path, values: list[Value], keys: list[str] | None = None, **options: Any) -> Replica:
    replica = Replica(LastState(SCHEMA, ["id"], **options), tmp_path)
    results = replica.process(messages(list(zip(keys or ["k"] * len(values), values, strict=True))))
    replica.counts = {name: count for name, count in results.counts.items() if count}  # type: ignore[attr-defined]
    return replica


def counts(replica: Replica) -> dict[str, int]:
    return replica.counts  # type: ignore[attr-defined,no-any-return]


def test_json_is_the_row_and_no_value_deletes_it(tmp_path: Path) -> None:
    values: list[Value] = [ANNE, {"id": 2, "name": "Bo", "new_field": [1]}, {"id": 3}, None, b"", b"null"]
    replica = followed(tmp_path, values, ["1", "2", "3", "3", '{"id": 4}', '{"payload": {"id": 5}}'])
    assert replica.live == {1: ANNE, 2: {"id": 2, "name": "Bo", "amount": None}}
    assert replica.tombstones() == {3, 4, 5}
    assert counts(replica) == {"events": 6, "keys": 5, "deletes": 3}


def test_json_rows_may_have_a_field_that_marks_deletions(tmp_path: Path) -> None:
    gone = ANNE | {"__deleted": "true"}
    replica = followed(tmp_path, [gone | {"__deleted": "false"}, gone], deleted="__deleted")
    assert (replica.live, replica.tombstones()) == ({}, {1})


def test_a_path_may_lead_into_a_column(tmp_path: Path) -> None:
    stage = LastState("id bigint, meta struct<version: int>", ["id"], sequence=("meta.version", "import.class"))
    replica = Replica(stage, tmp_path)
    rows: list[Value] = [{"id": 1, "meta": {"version": each}, "import": {"class": 0}} for each in (2, 3, 1)]
    replica.process(messages([("1", row) for row in [*rows, {"id": 2, "meta": 7}]]))
    assert replica.live == {1: {"id": 1, "meta": {"version": 3}}}
    assert "sequence (meta.version, import.class) is missing" in replica.dead[0]["reason"]


def test_json_takes_its_sequence_from_the_row(tmp_path: Path) -> None:
    """`amount` is a column and part of the sequence; `meta.version` is only part of the sequence."""
    values: list[Value] = [
        {"id": 1, "name": "new", "amount": 5, "meta": {"version": 2}},
        {"id": 1, "name": "old", "amount": 5, "meta": {"version": 1}},
        None,
    ]
    replica = followed(tmp_path, values, sequence=("amount", "meta.version"))
    assert replica.live[1]["name"] == "new"
    assert [letter["reason"] for letter in replica.dead] == ["a deletion without a value has no sequence"]


@pytest.mark.parametrize("wrap", [dict, enveloped])
def test_debezium_creates_reads_updates_and_deletes(tmp_path: Path, wrap: Any) -> None:
    values: list[Value] = [
        wrap(debezium("r", None, {"id": 1, "name": "A", "amount": 1})),
        wrap(debezium("u", None, ANNE)),
        wrap(debezium("c", None, {"id": 2, "name": "B"})),
        wrap(debezium("d", {"id": 2, "name": None}, None)),
        None,
        wrap(debezium("c", None, {"id": 3})),
        wrap(debezium("d", None, None)),
    ]
    keys = [json.dumps(wrap({"id": key})) for key in (1, 1, 2, 2, 2, 3, 3)]
    replica = followed(tmp_path, values, keys, format="debezium")
    assert (replica.live, replica.tombstones()) == ({1: ANNE}, {2, 3})


def test_debezium_may_move_a_row_to_another_key_in_one_event(tmp_path: Path) -> None:
    values: list[Value] = [debezium("c", None, ANNE, lsn=1), debezium("u", {"id": 1}, ANNE | {"id": 2}, lsn=2)]
    replica = followed(tmp_path, values, format="debezium", sequence=LSN)
    assert (replica.live, replica.tombstones()) == ({2: ANNE | {"id": 2}}, {1})
    assert counts(replica)["key_changes"] == 1


def test_debezium_events_about_no_row_are_ignored(tmp_path: Path) -> None:
    values: list[Value] = [
        {"ts_ms": 1700000000000},
        {"status": "BEGIN", "id": "571", "event_count": None, "data_collections": None},
        {"source": {"server": "s"}, "databaseName": "shop", "ddl": "ALTER TABLE people ADD x INT", "tableChanges": []},
        debezium("m", None, None),
        debezium("c", None, {"id": 9}, table="orders"),
        debezium("c", None, ANNE),
        None,
    ]
    replica = followed(tmp_path, values, ["{}"] * 7, format="debezium", table="public.people")
    assert replica.live == {1: ANNE}
    assert counts(replica) == {"events": 7, "keys": 1, "ddl": 1, "ignored": 5}


def test_debezium_tombstones_are_ignored_if_a_sequence_is_needed(tmp_path: Path) -> None:
    """A tombstone follows its deletion and has no sequence of its own."""
    values: list[Value] = [debezium("d", {"id": 1}, None, lsn=5), None, debezium("c", None, ANNE, lsn=6)]
    replica = followed(tmp_path, values, ['{"id": 1}'] * 3, format="debezium", sequence=LSN)
    assert replica.live == {1: ANNE}
    assert not replica.dead


@pytest.mark.parametrize("fold_first", [None, False])
def test_a_tombstone_of_another_table_deletes_nothing(tmp_path: Path, fold_first: bool | None) -> None:
    """Both tables have a row 1, and a tombstone does not name its table."""
    other = debezium("d", {"id": 1}, None, table="orders")
    values: list[Value] = [debezium("c", None, ANNE), other, None, debezium("c", None, {"id": 2}), None]
    values += [debezium("d", {"id": 2}, None), None]
    keys = ['{"id": 1}'] * 3 + ['{"id": 2}'] * 4
    replica = followed(tmp_path, values, keys, format="debezium", table="people", fold_first=fold_first)
    assert (replica.live, replica.tombstones()) == ({1: ANNE}, {2})


def test_canal_has_several_rows_as_text_per_message(tmp_path: Path) -> None:
    rows = [{"id": "1", "name": "Anne", "amount": "1.5"}, {"id": "2", "name": None, "amount": None}]
    values: list[Value] = [
        canal("INSERT", rows),
        canal("UPDATE", [{"id": "3", "name": "C", "amount": "2"}], [{"id": "2", "name": "B"}], es=1700000000001),
        canal("DELETE", [{"id": "4", "name": "D", "amount": "2"}]),
        canal("ALTER", None, isDdl=True, sql="ALTER TABLE people ADD x INT"),
        canal("INSERT", [{"id": "9"}], table="orders"),
    ]
    replica = followed(tmp_path, values, format="canal", sequence=("es", "id"), table="people")
    assert replica.live == {1: ANNE, 3: {"id": 3, "name": "C", "amount": 2.0}}
    assert replica.tombstones() == {2, 4}
    assert counts(replica) == {"events": 5, "keys": 4, "deletes": 2, "key_changes": 1, "ddl": 1, "ignored": 1}


def test_canal_rows_that_take_each_others_keys_end_as_in_the_source(tmp_path: Path) -> None:
    """`set id = id + 1 order by id desc`: the deletion of 2 comes first, and the row that becomes 2 stays."""
    data = [{"id": "3", "name": "B"}, {"id": "2", "name": "A"}]
    values: list[Value] = [canal("UPDATE", data, [{"id": "2"}, {"id": "1"}])]
    replica = followed(tmp_path, values, format="canal", one_queue=True)
    assert {key: row["name"] for key, row in replica.live.items()} == {2: "A", 3: "B"}
    assert replica.tombstones() == {1}


def test_maxwell_is_one_row_per_message(tmp_path: Path) -> None:
    values: list[Value] = [
        maxwell("bootstrap-start", {}),
        maxwell("bootstrap-insert", ANNE | {"name": "A"}),
        maxwell("update", ANNE, {"name": "A"}),
        maxwell("insert", {"id": 2, "name": "B", "amount": None}, xid=10),
        maxwell("update", {"id": 3, "name": "B", "amount": None}, {"id": 2}, xid=11),
        maxwell("insert", {"id": 4}),
        maxwell("delete", {"id": 4}, xid=12),
        {"type": "table-alter", "database": "shop", "table": "people", "sql": "ALTER TABLE people ADD x INT"},
    ]
    replica = followed(tmp_path, values, format="maxwell", sequence=("xid", "xoffset"))
    assert replica.live == {1: ANNE, 3: {"id": 3, "name": "B", "amount": None}}
    assert replica.tombstones() == {2, 4}
    assert counts(replica)["ddl"] == 1
    assert counts(replica)["ignored"] == 1


POISON: list[tuple[str, Value, str]] = [
    ("json", b"{", "not readable"),
    ("json", b"17", "not readable"),
    ("json", b'{"id": 1, "name": "\xff"}', "not readable"),
    ("json", b'{"id": 1, "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
    ("json", {"name": "absent"}, "column id: the key"),
    ("json", {"id": "x"}, "column id: the key"),
    ("debezium", debezium("t", None, None), "queue offsets cannot order it"),
    ("debezium", debezium("x", None, None), "operation 'x'"),
    ("debezium", debezium("u", None, None), "without the row after"),
    ("debezium", debezium("d", None, None), "without the row before"),
    ("debezium", ANNE, "not a Debezium event"),
    ("canal", canal("TRUNCATE", None, isDdl=True), "queue offsets cannot order it"),
    ("canal", canal("INSERT", None), "rows are missing"),
    ("canal", canal("INSERT", [{"id": "1"}, {"name": "B"}]), "column id: the key"),
    ("canal", canal("UPDATE", [{"id": "1"}, {"id": "2"}], [{"name": "B"}]), "another number of rows"),
    ("canal", None, "no type"),
    ("maxwell", maxwell("upsert", ANNE), "'upsert'"),
]


@pytest.mark.parametrize(("format", "value", "why"), POISON)
def test_a_message_that_is_not_understood_is_a_dead_letter_as_a_whole(
    tmp_path: Path, format: Any, value: Value, why: str
) -> None:
    """None of its rows is applied, so that it can be corrected and sent again."""
    replica = followed(tmp_path, [value], [""], format=format)
    [letter] = replica.dead
    assert why in letter["reason"]
    assert (letter["topic"], letter["broker"], letter["queue_id"], letter["queue_offset"]) == ("t", "b", 0, 0)
    assert replica.live == {}
    assert replica.tombstones() == set()
