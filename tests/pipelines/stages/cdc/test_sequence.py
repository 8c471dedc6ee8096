"""Sequences: what is newer."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType

from lanemq.model.errors import InvalidOption
from lanemq.pipelines import LastState
from lanemq.pipelines.queue_ties import source_part
from lanemq.pipelines.stages.cdc.sequence import encode, parse_parts, sequence_type

BINLOG = parse_parts(("source.file:file", "source.pos"))
NUMBERS = st.integers(0, 2**63 - 1)


def encoded(*rows: tuple[Any, Any, int]) -> list[Any]:
    files, places, offsets = zip(*rows, strict=True)
    return encode(BINLOG, [list(files), list(places)], pa.array(offsets, pa.int64())).to_pylist()  # type: ignore[no-any-return]


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 10**7), NUMBERS, NUMBERS), min_size=2, max_size=5))
def test_text_compares_as_the_numbers_do(rows: list[tuple[int, int, int]]) -> None:
    """Including file 1000000, whose name sorts before that of file 999999."""
    texts = encoded(*((f"mysql-bin.{file:06}", position, offset) for file, position, offset in rows))
    assert sorted(texts) == [text for _, text in sorted(zip(rows, texts, strict=True))]
    assert len({len(text) for text in texts}) == 1


def test_of_equal_source_sequences_the_later_offset_is_newer() -> None:
    first, second = encoded(("bin.1", 4, 9), ("bin.1", 4, 10))
    assert first < second
    assert source_part(pa.array([first]))[0] == source_part(pa.array([second]))[0]


@pytest.mark.parametrize("row", [(None, 4, 1), ("bin.1", None, 1), ("bin", 4, 1), ("bin.1", -4, 1), ("bin.1", "x", 1)])
def test_a_part_that_cannot_be_read_gives_a_null_sequence(row: tuple[Any, Any, int]) -> None:
    """If it counted as zero, the change would silently lose against all others."""
    assert encoded(row) == [None]


def test_text_parts_compare_by_length_first() -> None:
    parts = parse_parts(["lsn:text"])
    older, newer, long = encode(parts, [["ff", "100", "x" * 41]], pa.array([2, 1, 3])).to_pylist()
    assert older < newer
    assert long is None


def test_without_parts_the_sequence_is_the_offset() -> None:
    assert isinstance(sequence_type(()), LongType)
    assert isinstance(sequence_type(BINLOG), StringType)
    assert encode((), [], pa.array([5])).to_pylist() == [5]


@pytest.mark.parametrize("text", ["", "a..b", "a b", "lsn:roman", "1a"])
def test_an_invalid_path_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="sequence"):
        parse_parts([text])


def test_a_bound_is_above_older_positions_only() -> None:
    """Deletions below it are purged; older changes may still come for one at the position itself."""
    parts = parse_parts(("file:file", "pos"))
    stage = LastState("id bigint", ["id"], format="maxwell", sequence=("file:file", "pos"))
    bound = stage.sequence_before("mysql-bin.000003", 154)
    values: list[list[object]] = [["bin.2", "bin.3", "bin.3", "bin.3", "bin.10"], [999, 153, 154, 155, 1]]
    found = encode(parts, values, pa.array([9] * 5)).to_pylist()
    assert [text < bound for text in found] == [True, True, False, False, False]


@pytest.mark.parametrize("position", [(), ("bin.1",), ("bin", 1), ("bin.1", -1), ("bin.1", None), ("bin.1", 1, 2)])
def test_an_invalid_position_is_refused(position: tuple[object, ...]) -> None:
    stage = LastState("id bigint", ["id"], format="maxwell", sequence=("file:file", "pos"))
    with pytest.raises(InvalidOption, match="file:file, pos:number"):
        stage.sequence_before(*position)


def test_a_bound_without_a_sequence_is_refused() -> None:
    with pytest.raises(InvalidOption, match="queue offsets order it"):
        LastState("id bigint", ["id"]).sequence_before(7)
