"""Reading messages into the newest rows, and leaving messages unread without changing the result."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.pipelines.stages.cdc.replica_fixture import SCHEMA, Replica, Value, messages
from tests.pipelines.stages.cdc.test_formats import debezium

from lanemq.model.errors import CodecError
from lanemq.pipelines import LastState
from lanemq.pipelines.stages.cdc import reading
from lanemq.pipelines.stages.cdc.reading import Reader, by_queue


def row(key: int, name: str | int) -> dict[str, Any]:
    return {"id": key, "name": name}


def names(replica: Replica) -> dict[Any, Any]:
    return {key: found["name"] for key, found in replica.live.items()}


def stage(**options: Any) -> LastState:
    return LastState(SCHEMA, ["id"], **options)


def count_reads(stage: LastState, pairs: list[tuple[str | None, Value]]) -> int:
    """The number of messages that are decoded."""
    reader, seen = Reader(stage.options), 0
    original = reader._read

    def counting(some: Any) -> Any:
        nonlocal seen
        seen += some.num_rows
        return original(some)

    reader._read = counting  # type: ignore[method-assign]
    reader.fold(messages(pairs))
    return seen


MANY: list[tuple[str | None, Value]] = [('{"id": 1}', row(1, number)) for number in range(50)]


def test_only_the_newest_message_is_read_if_the_message_key_names_its_row() -> None:
    assert count_reads(stage(), MANY) == 1
    assert count_reads(stage(fold_first=False), MANY) == 50
    assert count_reads(stage(sequence=("id",)), MANY) == 50, "a source sequence may disagree with the offsets"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("json", b'{"id":1,"name":"x","id":2}'),
        ("json", b'{"id":1,"name":"x","\\u0069d":2}'),
        ("debezium", b'{"before":null,"after":{"id":1,"name":"x","id":2},"op":"u"}'),
        ("debezium", b'{"before":null,"after":{"id":1},"op":"u","after":{"name":"x", "id" : 2}}'),
        ("debezium", b'{"before":null,"after":{"id":1,"name":"x"},"op":"u","before":{"id":2},"op":"d"}'),
        ("debezium", b'{"before":null,"after":{"id":1,"name":"x"},"op":"u","op": "t"}'),
    ],
    ids=["field", "escaped field", "field of after", "after", "before", "operation"],
)
def test_a_field_that_occurs_twice_has_its_last_value_in_every_batch(tmp_path: Path, kind: Any, value: bytes) -> None:
    events = [each if kind == "json" else debezium("c", None, each) for each in (row(2, "first"), row(1, "newest"))]
    first, newest = (json.dumps(each, separators=(",", ":")).encode() for each in events)
    pairs: list[tuple[str | None, Value]] = [('{"id": 2}', first), *[('{"id": 1}', value)] * 5]
    pairs.append(('{"id": 1}', newest))
    found = []
    for batches in ([pairs], [[pair] for pair in pairs]):
        replica, offset = Replica(stage(format=kind, one_queue=True), tmp_path / str(len(batches))), 0
        for batch in batches:
            replica.process(messages(batch, first=offset))
            offset += len(batch)
        found.append(names(replica))
    assert found[0] == found[1]
    assert found[0][1] == "newest"


def test_all_messages_of_a_plain_message_key_are_read_without_fold_first() -> None:
    """Message key "17" may be customer 17 with many orders, one of them order 17."""
    pairs: list[tuple[str | None, Value]] = [("17", row(3, "x")), *[("17", row(17, "y"))] * 9]
    assert count_reads(stage(), pairs) == 10
    assert count_reads(stage(fold_first=True), pairs) == 1


def test_messages_with_distinct_keys_are_read_once() -> None:
    pairs: list[tuple[str | None, Value]] = [(f'{{"id": {key}}}', row(key, "x")) for key in range(20)]
    assert count_reads(stage(), pairs) == 20


@pytest.mark.parametrize("fold_first", [None, True, False])
def test_if_the_newest_message_is_poison_the_one_before_it_counts(tmp_path: Path, fold_first: bool | None) -> None:
    """Also with fold_first, where only the newest message is read at first."""
    pairs = [*MANY[:8], ('{"id": 1}', row(1, "good")), ('{"id": 1}', b"{broken"), ('{"id": 2}', row(2, "other"))]
    replica = Replica(stage(fold_first=fold_first), tmp_path)
    results = replica.process(messages(pairs))
    assert names(replica) == {1: "good", 2: "other"}
    assert [letter["queue_offset"] for letter in replica.dead] == [9]
    assert results.counts["poison"] == 1
    assert results.counts["events"] == 11


def test_a_message_about_another_row_than_its_key_names_hides_no_message(tmp_path: Path) -> None:
    pairs = [*MANY[:8], ('{"id": 1}', row(2, "stray"))]
    replica = Replica(stage(), tmp_path)
    replica.process(messages(pairs))
    assert names(replica) == {1: "7", 2: "stray"}


@pytest.mark.parametrize("spaced", [True, False])
def test_an_unread_message_that_is_about_another_row_is_found(tmp_path: Path, spaced: bool) -> None:
    """Its message key names the row of the newer messages, for which it is right."""
    texts = [json.dumps(row(*each), separators=None if spaced else (",", ":")) for each in ((2, "x"), (1, "y"))]
    replica = Replica(stage(), tmp_path)
    replica.process(messages([('{"id": 1}', texts[0].encode()), *[('{"id": 1}', texts[1].encode())] * 8]))
    assert names(replica) == {1: "y", 2: "x"}


def test_keys_that_differ_after_a_comma_or_an_escape_are_different_rows(tmp_path: Path) -> None:
    """Comparing bytes must not take a part of a key for the whole."""
    for first, other in (("a,b", "a,c"), ('a"b', 'a"c'), ("a}", "a}b"), ("ä", "ä ")):
        replica = Replica(LastState("`the id` string, n int", ["the id"]), tmp_path / first)
        bodies = [json.dumps({"the id": key, "n": 1}, separators=(",", ":")).encode() for key in (other, first)]
        key = json.dumps({"the id": first})
        replica.process(messages([(key, bodies[0]), *[(key, bodies[1])] * 8]))
        assert set(replica.live) == {first, other}


def test_a_message_without_a_change_hides_no_message(tmp_path: Path) -> None:
    events: list[tuple[str | None, Value]] = [('{"id": 1}', debezium("c", None, row(1, n))) for n in range(8)]
    replica = Replica(stage(format="debezium"), tmp_path)
    results = replica.process(messages([*events, ('{"id": 1}', {"ts_ms": 5})]))
    assert names(replica) == {1: "7"}
    assert results.counts["ignored"] == 1, "read twice, counted once"


def test_messages_without_a_key_are_all_read(tmp_path: Path) -> None:
    pairs: list[tuple[str | None, Value]] = [(None, row(1, "a")), ("", row(2, "b")), (None, row(3, "c")), ("", b"{")]
    replica = Replica(stage(fold_first=True), tmp_path)
    replica.process(messages([*pairs, *MANY]))
    assert names(replica) == {1: "49", 2: "b", 3: "c"}


def test_a_value_that_does_not_fit_is_null_and_counted(tmp_path: Path) -> None:
    replica = Replica(stage(), tmp_path)
    results = replica.process(messages([("1", {"id": 1, "name": "x", "amount": "much"})]))
    assert replica.live == {1: {"id": 1, "name": "x", "amount": None}}
    assert results.counts["misfits"] == 1


@pytest.mark.parametrize("key", ["1", '{"id": 1}'])
def test_a_value_that_does_not_fit_can_be_poison(tmp_path: Path, key: str) -> None:
    pairs: list[tuple[str | None, Value]] = [(key, row(1, "good"))] * 3
    replica = Replica(stage(misfits="dead_letter"), tmp_path)
    replica.process(messages([*pairs, (key, {"id": 1, "name": "bad", "amount": "much"})]))
    assert names(replica) == {1: "good"}
    assert "column amount: the value does not fit double" in replica.dead[0]["reason"]


def test_poison_can_end_the_query(tmp_path: Path) -> None:
    with pytest.raises(CodecError, match="queue b/0 offset 50: not readable"):
        Replica(stage(on_poison="fail"), tmp_path).process(messages([*MANY, ("1", b"{")]))


def test_insert_delete_insert_ends_with_the_last_one(tmp_path: Path) -> None:
    """The sequence alone decides; a rule such as "deletions win" would leave no row."""
    replica = Replica(stage(), tmp_path)
    replica.process(messages([("1", row(1, "first")), ("1", None), ("1", row(1, "again"))]))
    assert names(replica) == {1: "again"}


def test_the_newest_of_all_chunks_of_a_task_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task with many messages folds them in chunks."""
    monkeypatch.setattr(reading, "CHUNK_BYTES", 1)
    replica = Replica(stage(), tmp_path)
    parts = [messages(MANY[start : start + 10], first=start) for start in range(0, 50, 10)]
    results = replica.process(pa.concat_tables(parts))
    assert names(replica) == {1: "49"}
    assert results.counts["events"] == 50


def test_a_partition_may_hold_several_queues_in_any_order(tmp_path: Path) -> None:
    one, two = messages([("1", row(1, "a")), ("1", row(1, "b"))]), messages([("2", row(2, "c"))], queue=1)
    replica = Replica(stage(), tmp_path)
    replica.process(pa.concat_tables([one.take([1]), two, one.take([0])]))
    assert names(replica) == {1: "b", 2: "c"}


def test_queues_that_follow_each_other_are_not_copied() -> None:
    """A task reads up to hundreds of queues; copying the chunk for each of them would take longer than reading it."""
    together = pa.concat_tables([messages(MANY, queue=number) for number in range(3)]).combine_chunks()
    found = list(by_queue(together))
    assert [name for name, _ in found] == ["t/b/0", "t/b/1", "t/b/2"]
    assert [part["queue_offset"].to_pylist() for _, part in found] == [list(range(50))] * 3
    values = together["value"].chunk(0).buffers()[2]
    assert all(part["value"].chunk(0).buffers()[2].address == values.address for _, part in found)
    assert list(by_queue(together.slice(0, 0))) == []
    assert [part.num_rows for _, part in by_queue(together.slice(49, 2))] == [1, 1]


def test_an_empty_batch_gives_no_rows(tmp_path: Path) -> None:
    results = Replica(stage(), tmp_path).process()
    assert results.outputs.count() == 0
    assert results.dead_letters is None
    assert results.outputs.table().schema.names == ["id", "name", "amount", "_sequence", "_deleted", "_queue"]


def test_the_files_of_a_batch_are_removed(tmp_path: Path) -> None:
    Replica(stage(), tmp_path).process(messages(MANY))
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"table.json"}


def test_decimals_keep_all_their_digits(tmp_path: Path) -> None:
    exact = LastState("id bigint, price decimal(30,10), ratio double", ["id"])
    replica = Replica(exact, tmp_path)
    replica.process(messages([("1", b'{"id": 1, "price": 12345678901234567890.0123456789, "ratio": 0.5}')]))
    assert str(replica.live[1]["price"]) == "12345678901234567890.0123456789"
    assert replica.live[1]["ratio"] == 0.5


@pytest.mark.parametrize(
    ("column", "text", "found"),
    [
        ("struct<n: decimal(38,18)>", '{"n": %s}', lambda value: value["n"]),
        ("array<decimal(38,18)>", "[%s]", lambda value: value[0]),
        ("map<string, struct<n: decimal(38,18)>>", '{"k": {"n": %s}}', lambda value: value[0][1]["n"]),
    ],
)
def test_nested_decimals_keep_all_their_digits(tmp_path: Path, column: str, text: str, found: Any) -> None:
    digits = "12345678901234567.123456789012345678"
    replica = Replica(LastState(f"id bigint, price {column}", ["id"]), tmp_path)
    replica.process(messages([("1", f'{{"id": 1, "price": {text % digits}}}'.encode())]))
    assert str(found(replica.live[1]["price"])) == digits


def test_a_decimal_column_does_not_change_its_neighbours(tmp_path: Path) -> None:
    """All fractions are then decoded as decimals, whatever their column is."""
    body = b'{"id": 1, "d": 1.5, "n": 12345678901234567.0, "t": {"x": 1.25}, "price": 1}'
    replica = Replica(LastState("id bigint, d double, n bigint, t string, price decimal(10,2)", ["id"]), tmp_path)
    replica.process(messages([("1", body)]))
    found = replica.live[1]
    assert (found["d"], found["n"], found["t"]) == (1.5, 12345678901234567, '{"x":1.25}')


def test_a_number_that_is_too_large_makes_only_its_message_a_dead_letter(tmp_path: Path) -> None:
    replica = Replica(LastState("id bigint, price decimal(10,2)", ["id"]), tmp_path)
    replica.process(
        messages([("1", b'{"id": 1, "price": 1e99999999999999999999999}'), ("2", b'{"id": 2, "price": 1.5}')])
    )
    assert set(replica.live) == {2}
    assert "not readable" in replica.dead[0]["reason"]


def test_a_message_key_nested_too_deeply_names_no_row(tmp_path: Path) -> None:
    key = '{"id": ' + "[" * 100_000
    replica = Replica(stage(), tmp_path)
    replica.process(messages([(key, row(1, "a"))] * 3))
    replica.process(messages([(key, None)], first=3))
    assert names(replica) == {1: "a"}
    assert "does not name the row" in replica.dead[0]["reason"]


def test_columns_may_have_any_name(tmp_path: Path) -> None:
    odd = LastState("`the id` string, `class` int, `__x` int, `self` int", ["the id"])
    replica = Replica(odd, tmp_path)
    replica.process(messages([("k", {"the id": "a", "class": 1, "__x": 2, "self": 3})]))
    assert replica.live["a"] == {"the id": "a", "class": 1, "__x": 2, "self": 3}


def test_a_partition_may_be_in_any_order(tmp_path: Path) -> None:
    """After a shuffle the newest message of a key is not the last one."""
    replica = Replica(stage(), tmp_path)
    replica.process(messages(MANY).sort_by([("queue_offset", "descending")]))
    assert names(replica) == {1: "49"}


def test_a_deletion_has_only_a_key(tmp_path: Path) -> None:
    """Even if the event carries the old row: a table that keeps deletions must not keep personal data."""
    results = Replica(stage(deleted="gone"), tmp_path).process(messages([("1", {**row(1, "Anne"), "gone": True})]))
    expected = {"id": 1, "name": None, "amount": None, "_sequence": 0, "_deleted": True, "_queue": "t/b/0"}
    assert results.outputs.table().to_pylist() == [expected]


def test_a_dead_letter_has_the_message_id(tmp_path: Path) -> None:
    """The broker finds a message by its id. Without the column (`prepare` may drop it) the id is null."""
    replica = Replica(LastState(SCHEMA, ["id"]), tmp_path)
    replica.process(messages([("a", b"poison")], queue=3, first=7))
    replica.process(messages([("a", b"poison")], first=9).drop_columns("message_id"))
    assert [(row["queue_offset"], row["message_id"]) for row in replica.dead] == [(7, "id-3-7"), (9, None)]


@pytest.mark.parametrize(
    ("format", "wrapped"),
    [
        ("json", lambda row: row),
        ("debezium", lambda row: {"op": "u", "after": row, "source": {}}),
        ("debezium", lambda row: {"schema": {}, "payload": {"op": "u", "after": row, "source": {}}}),
        ("canal", lambda row: {"type": "UPDATE", "data": [row], "isDdl": False}),
        ("maxwell", lambda row: {"type": "update", "data": row}),
    ],
)
def test_a_new_field_of_the_source_is_logged_once_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, format: Any, wrapped: Any
) -> None:
    """Fields that the declaration leaves out from the start are not logged."""
    replica = Replica(LastState(SCHEMA, ["id"], format=format), tmp_path)
    old = {"id": 1, "name": "a", "amount": 1.0, "never_wanted": True}
    counts = [
        replica.process(messages([(None, wrapped(row))], first=first)).counts.get("new_fields", 0)
        for first, row in enumerate([old, old | {"colour": "red"}, old | {"colour": "blue"}, old])
    ]
    assert counts == [0, 1, 0, 0]
    assert caplog.text.count("the new field colour, which is skipped") == 1
    assert replica.live[1]["name"] == "a"


@pytest.mark.parametrize("sequence", [None, ["lsn"]])
def test_a_field_that_came_while_the_pipeline_was_stopped_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sequence: Any
) -> None:
    old = {"id": 1, "name": "a", "amount": 1.0, "never_wanted": True}
    counts = []
    for first, row in enumerate([old, old, old | {"colour": "red"}, old | {"colour": "blue"}]):
        replica = Replica(LastState(SCHEMA, ["id"], sequence=sequence), tmp_path)
        batch = messages([(None, row | {"lsn": first} if sequence else row)], first=first)
        counts.append(replica.process(batch).counts.get("new_fields", 0))
    assert counts == [0, 0, 1, 0]
    assert caplog.text.count("the new field colour, which is skipped") == 1


def test_fields_of_another_table_are_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica(LastState(SCHEMA, ["id"], format="maxwell", table="people"), tmp_path)

    def insert(table: str, row: dict[str, Any]) -> tuple[None, dict[str, Any]]:
        return None, {"type": "insert", "database": "shop", "table": table, "data": row}

    replica.process(messages([insert("people", {"id": 1})]))
    people, others = insert("people", {"id": 2, "colour": "red"}), insert("orders", {"id": 1, "total": 5})
    replica.process(messages([people, others], first=1))
    assert "the new field colour, which is skipped" in caplog.text


def test_messages_without_a_row_do_not_hide_new_fields(tmp_path: Path) -> None:
    replica = Replica(LastState(SCHEMA, ["id"]), tmp_path)
    replica.process(messages([("k", {"id": 1})]))
    found = replica.process(messages([("k", {"id": 1, "colour": "red"}), ("1", b"[" * 9_999), ("2", b"[]")], first=1))
    assert found.counts["new_fields"] == 1


def test_a_field_name_that_is_not_utf8_does_not_end_the_query(tmp_path: Path) -> None:
    """A lone surrogate can be neither sent to the driver nor logged."""
    replica = Replica(LastState(SCHEMA, ["id"]), tmp_path)
    replica.process(messages([("k", {"id": 1}), ("k", b'{"id": 2, "\\ud800": 1}')]))
    assert set(replica.live) == {1}
    assert [letter["queue_offset"] for letter in replica.dead] == [1]
