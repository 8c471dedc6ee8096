"""A schema that Debezium embeds says what times and decimals mean; options count only where there is none."""

import json
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.pipelines.stages.cdc.replica_fixture import Replica, messages
from tests.pipelines.stages.cdc.test_formats import debezium

from lanemq.pipelines import LastState
from lanemq.pipelines.stages.cdc import meanings
from lanemq.pipelines.stages.cdc.meanings import Meaning, SchemaCache, column_types, convert_as, parse_schema

DEBEZIUM, CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
SECOND = 1_700_006_400
MOMENT = datetime.fromtimestamp(SECOND, UTC)
DAY = SECOND // 86_400


def field(column: str, kind: str, name: str | None = None, **parameters: str) -> dict[str, Any]:
    found = {"field": column, "type": kind, "optional": True}
    return found | ({"name": name, "version": 1} if name else {}) | ({"parameters": parameters} if parameters else {})


def schema(*fields: dict[str, Any]) -> dict[str, Any]:
    rows = [{"type": "struct", "fields": list(fields), "optional": True, "field": each} for each in ("before", "after")]
    return {"type": "struct", "fields": [*rows, field("op", "string")], "optional": False, "name": "shop.Envelope"}


def event(row: dict[str, Any], *fields: dict[str, Any]) -> dict[str, Any]:
    return {"schema": schema(field("id", "int64"), *fields), "payload": debezium("c", None, row)}


def base64(number: int) -> str:
    return b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


TIMES = [
    (DEBEZIUM + "Timestamp", SECOND * 1000),
    (DEBEZIUM + "MicroTimestamp", SECOND * 10**6),
    (DEBEZIUM + "NanoTimestamp", SECOND * 10**9),
    (CONNECT + "Timestamp", SECOND * 1000),
    (DEBEZIUM + "ZonedTimestamp", "2023-11-15T00:00:00Z"),
    (DEBEZIUM + "IsoTimestamp", "2023-11-15T00:00:00Z"),
    (DEBEZIUM + "Date", DAY),
    (CONNECT + "Date", DAY),
]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (field("x", "int32"), "long"),
        (field("x", "float"), "double"),
        (field("x", "array"), "string"),
        (field("x", "bytes"), "binary"),
        (field("x", "bytes", CONNECT + "Decimal", scale="3"), "decimal(38,3)"),
        (field("x", "bytes", CONNECT + "Decimal", scale="0", **{"connect.decimal.precision": "65"}), "string"),
        (field("x", "bytes", CONNECT + "Decimal", scale="-2"), "string"),
        (field("x", "bytes", CONNECT + "Decimal"), None),
        (field("x", "struct", "io.debezium.data.VariableScaleDecimal"), "string"),
        (field("x", "int32", DEBEZIUM + "Time"), "long"),
        (field("x", "string", "io.debezium.data.Json"), "string"),
        (field("x", "something"), None),
    ],
)
def test_a_schema_gives_a_column_its_type(column: dict[str, Any], kind: str | None) -> None:
    assert column_types(json.dumps(schema(column)).encode()).get("x") == kind


@pytest.mark.parametrize(("name", "value"), TIMES)
def test_the_schema_says_the_unit_of_a_time(tmp_path: Path, name: str, value: Any) -> None:
    """Also against an option that says another one."""
    kind = "string" if isinstance(value, str) else "int64"
    replica = Replica(LastState("id bigint, at timestamp", ["id"], format="debezium", time_unit="s"), tmp_path)
    replica.process(messages([("1", event({"id": 1, "at": value}, field("at", kind, name)))]))
    assert replica.live[1]["at"] == MOMENT


@pytest.mark.parametrize(
    ("name", "value"),
    [(DEBEZIUM + "Date", DAY), (CONNECT + "Date", DAY), (DEBEZIUM + "IsoDate", "2023-11-15Z")]
    + [(name, value) for name, value in TIMES if name.endswith("Timestamp") and isinstance(value, int)],
)
def test_dates_are_days_or_times_at_midnight(name: str, value: Any) -> None:
    told = parse_schema(json.dumps(schema(field("at", "int64", name))).encode())["at"]
    column, misfits = convert_as([value, None], pa.date32(), Meaning(), [told, told])
    assert (column.to_pylist(), misfits) == ([date(2023, 11, 15), None], [])


def test_a_time_of_day_in_a_date_column_is_a_misfit() -> None:
    told = Meaning("ms", is_known=True)
    column, misfits = convert_as([SECOND * 1000 + 1, SECOND * 1000, 10**18, "no"], pa.date32(), Meaning(), [told] * 4)
    assert (column.to_pylist(), misfits) == ([None, date(2023, 11, 15), None, None], [0, 2, 3])


DECIMALS = [
    (base64(12345), field("price", "bytes", CONNECT + "Decimal", scale="3"), "12.345"),
    (base64(-5), field("price", "bytes", CONNECT + "Decimal", scale="0"), "-5.000"),
    ({"scale": 1, "value": base64(15)}, field("price", "struct", "io.debezium.data.VariableScaleDecimal"), "1.500"),
    ("1234", field("price", "string"), "1234.000"),
    (12.5, field("price", "double"), "12.500"),
]


@pytest.mark.parametrize("decimals", ["text", "base64"])
@pytest.mark.parametrize(("value", "told", "wanted"), DECIMALS)
def test_the_schema_says_how_decimals_are_written(
    tmp_path: Path, value: Any, told: dict[str, Any], wanted: str, decimals: Any
) -> None:
    """The scale is that of the source, which may differ from the declared one."""
    declared = "id bigint, price decimal(10,3), words string"
    replica = Replica(LastState(declared, ["id"], format="debezium", decimals=decimals), tmp_path)
    row = {"id": 1, "price": value, "words": value}
    found = replica.process(messages([("1", event(row, told, told | {"field": "words"}))]))
    assert (str(replica.live[1]["price"]), found.counts["misfits"]) == (wanted, 0)
    assert Decimal(replica.live[1]["words"]) == Decimal(wanted)


def test_every_message_is_read_with_its_own_schema(tmp_path: Path) -> None:
    """A change of the source's schema, or of the connector's settings, may come in the middle of a batch."""
    replica = Replica(LastState("id bigint, at timestamp", ["id"], format="debezium", fold_first=False), tmp_path)
    units = {1: ("Timestamp", 1000), 2: ("MicroTimestamp", 10**6), 3: ("Timestamp", 1000), 4: ("NanoTimestamp", 10**9)}
    pairs: list[tuple[str | None, Any]] = [
        (str(key), event({"id": key, "at": SECOND * factor}, field("at", "int64", DEBEZIUM + name)))
        for key, (name, factor) in units.items()
    ]
    bare = debezium("c", None, {"id": 5, "at": SECOND * 1000})
    replica.process(messages([*pairs[:2], ("5", bare), *pairs[2:]]))
    assert {key: row["at"] for key, row in replica.live.items()} == dict.fromkeys(range(1, 6), MOMENT)


def test_control_without_the_schema_the_same_events_give_other_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meanings, "parse_schema", lambda _: {})
    replica = Replica(LastState("id bigint, at timestamp", ["id"], format="debezium"), tmp_path)
    replica.process(
        messages([("1", event({"id": 1, "at": SECOND * 10**6}, field("at", "int64", DEBEZIUM + "MicroTimestamp")))])
    )
    assert replica.live[1]["at"] != MOMENT


def test_keys_are_read_with_the_schema_also_where_only_the_message_key_has_one(tmp_path: Path) -> None:
    """The key of an Oracle table is a decimal; the tombstone of a row has no value."""
    number = field("id", "bytes", CONNECT + "Decimal", scale="0")
    key = json.dumps({"schema": {"type": "struct", "fields": [number]}, "payload": {"id": base64(300)}})
    row = {"schema": schema(number), "payload": debezium("c", None, {"id": base64(300)})}
    replica = Replica(LastState("id decimal(20,0)", ["id"], format="debezium"), tmp_path)
    replica.process(messages([(key, row)]))
    assert set(replica.live) == {Decimal(300)}
    replica.process(messages([(key, None)], first=1))
    assert (replica.live, replica.tombstones(), replica.dead) == ({}, {Decimal(300)}, [])


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"17", b"{", b'{"fields": 1}', b'{"fields": null}']
    + [b'{"fields": [{"field": "a", "name": {}, "type": []}]}']
    + [json.dumps(schema(field("a", "bytes", CONNECT + "Decimal", scale=scale))).encode() for scale in ("x", "99999")]
    + [json.dumps(schema(field("a", "bytes", CONNECT + "Decimal"))).encode()],
)  # fmt: skip
def test_a_schema_of_another_form_says_nothing(text: bytes) -> None:
    assert parse_schema(text) == {}


def test_a_schema_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(meanings, "parse_schema", lambda text: parsed.append(text) or {})
    monkeypatch.setattr(meanings, "MAX_SCHEMAS", 2)
    cache = SchemaCache()
    cache.columns([b"a", b"a", b"b", b"a", b""])
    assert parsed == [b"a", b"b", b""]
    cache.columns([b"c", b"c", b"a"])
    assert parsed.count(b"a") == 2
