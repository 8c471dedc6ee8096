"""A body that cannot be decompressed becomes a dead letter, never a deletion."""

import pyarrow as pa
import pytest

from lanemq.pipelines import LastState, Project, Topic, Transitions
from lanemq.pipelines.stages.cdc.reading import Reader
from lanemq.pipelines.stages.transitions.messages import empty_decoder
from lanemq.spark.columns import CompressedBody, decompress_bodies
from lanemq.spark.options import OnDamaged
from lanemq.wire.compression import ZLIB_SYS_FLAG


def body_for(stage: object) -> bytes | None:
    """The body that the source gives to this stage."""
    damaged = OnDamaged(stage.on_damaged or OnDamaged.FAIL)
    (body,) = decompress_bodies([CompressedBody(0, ZLIB_SYS_FLAG, b"x\x9cno zlib")], damaged, str)
    return body


def transitions() -> Transitions:
    return Transitions(step=lambda state, event: (state, ()), outputs="id long")


@pytest.mark.parametrize("decode", ["json", "text", "bytes", dict, bytes.hex])
def test_a_damaged_body_is_poison_to_transitions_with_any_decoder(decode: object) -> None:
    with pytest.raises(ValueError, match="no body"):
        empty_decoder(decode)(body_for(transitions()))


@pytest.mark.parametrize("format", ["json", "debezium"])
def test_a_damaged_body_does_not_delete_a_row_of_last_state(format: str) -> None:
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


def test_on_damaged_of_a_topic_overrides_that_of_its_stage() -> None:
    said = Topic("localhost:9876", "orders", ondamaged="fail")
    assert said.with_damaged("raw") == said.options
    assert Topic("localhost:9876", "orders").with_damaged("raw")["onDamaged"] == "raw"
    nothing = Topic("localhost:9876", "orders")
    assert nothing.with_damaged(Project().on_damaged) == nothing.options
