"""Messages whose compressed body cannot be unpacked: poison to stages that set messages aside, never a deletion."""

import pyarrow as pa
import pytest

from lanemq.pipelines import LastState, Project, Topic, Transitions
from lanemq.pipelines.stages.cdc.reading import Reader
from lanemq.pipelines.stages.transitions.event import empty_decoder
from lanemq.spark.columns.arrow import CompressedBody, OnDamaged, decompress_bodies
from lanemq.wire.compression import ZLIB_SYS_FLAG


def body_for(stage: object) -> bytes | None:
    """What the source hands to this stage."""
    damaged = OnDamaged(stage.on_damaged or OnDamaged.FAIL)
    (body,) = decompress_bodies([CompressedBody(0, ZLIB_SYS_FLAG, b"x\x9cno zlib")], damaged, str)
    return body


def transitions() -> Transitions:
    return Transitions(step=lambda state, event: (state, ()), outputs="id long")


@pytest.mark.parametrize("decode", ["json", "text", "bytes", dict, bytes.hex])
def test_transitions_take_it_for_poison_however_they_decode(decode: object) -> None:
    with pytest.raises(ValueError, match="no body"):
        empty_decoder(decode)(body_for(transitions()))


@pytest.mark.parametrize("format", ["json", "debezium"])
def test_the_last_state_of_a_row_is_not_deleted_by_it(format: str) -> None:
    stage = LastState("id bigint, name string", ["id"], format=format)  # type: ignore[arg-type]
    messages = pa.table(
        {
            "topic": ["t"], "broker": ["b"], "queue_id": pa.array([0], pa.int32()), "queue_offset": [7],
            "key": ['{"id": 1}'], "value": pa.array([body_for(stage)], pa.binary()), "message_id": ["m"],
            "store_timestamp": pa.array([0], pa.timestamp("us", "UTC")),
        }
    )  # fmt: skip
    folded = Reader(stage.options).fold(messages)
    assert (folded.rows.num_rows, folded.dead["queue_offset"].to_pylist()) == (0, [7])


def test_the_options_of_a_topic_win_over_its_stage() -> None:
    said = Topic("localhost:9876", "orders", ondamaged="fail")
    assert said.with_damaged("raw") == said.options
    assert Topic("localhost:9876", "orders").with_damaged("raw")["onDamaged"] == "raw"
    nothing = Topic("localhost:9876", "orders")
    assert nothing.with_damaged(Project().on_damaged) == nothing.options
