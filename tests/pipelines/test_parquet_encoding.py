"""Columns whose values repeat get a dictionary, others do not; what is read is the same."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lanemq.pipelines.parquet_encoding import SAMPLE, dictionary_columns

COUNT = SAMPLE + 10
ROWS = pa.table(
    {
        "id": range(COUNT),
        "status": [("open", "paid")[number % 2] for number in range(COUNT)],
        "nothing": pa.nulls(COUNT, pa.string()),
        "tags": [[f"t{number % 3}"] for number in range(COUNT)],
        "names": pa.array([[("key", number % 3)] for number in range(COUNT)], pa.map_(pa.string(), pa.int64())),
        "place": [{"city": "Ulm", "at": [{"x": number}]} for number in range(COUNT)],
        "later": [min(number, SAMPLE) for number in range(COUNT)],
    }
)
NESTED = ["tags.list.element", "names.key_value.key", "names.key_value.value", "place.city", "place.at.list.element.x"]


def encodings(path: Path) -> dict[str, bool]:
    """Whether each column of a file has a dictionary."""
    columns: Any = pq.ParquetFile(path).metadata.row_group(0)
    return {
        columns.column(at).path_in_schema: columns.column(at).has_dictionary_page for at in range(columns.num_columns)
    }


def test_only_columns_whose_values_repeat_get_a_dictionary(tmp_path: Path) -> None:
    assert dictionary_columns(ROWS) == ["status", "nothing", *NESTED]
    assert dictionary_columns(ROWS.slice(0, 0)) == ["id", "status", "nothing", *NESTED, "later"]
    pq.write_table(ROWS, tmp_path / "rows.parquet", use_dictionary=dictionary_columns(ROWS))
    found = encodings(tmp_path / "rows.parquet")
    assert {name for name, has in found.items() if has} >= {"status", *NESTED}
    assert not found["id"]
    assert pq.read_table(tmp_path / "rows.parquet").equals(ROWS)


def test_a_dictionary_for_every_column_would_make_the_file_larger(tmp_path: Path) -> None:
    ids = pa.table({"id": pa.array(range(200_000)).cast(pa.string())})
    for name, columns in (("ours", dictionary_columns(ids)), ("every", True)):
        pq.write_table(ids, tmp_path / name, use_dictionary=columns)
    assert (tmp_path / "ours").stat().st_size < (tmp_path / "every").stat().st_size
