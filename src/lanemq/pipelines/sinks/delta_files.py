"""How delta-rs reaches a table, and what its log says about a Parquet file."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from lanemq.files import StorePath
from lanemq.files.objects import ObjectPath, store_config

MAX_BOUND_LENGTH = 64
"""Characters of a text that is recorded as a file's smallest or largest value."""


def partition_text(value: Any) -> str | None:
    """A partition value as Delta's protocol writes it; empty text is null there."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def file_stats(metadata: pq.FileMetaData) -> str:
    """The number of rows and the range of each column, by which readers and merges skip files."""
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at in range(metadata.num_columns):
        found = [metadata.row_group(group).column(at) for group in range(metadata.num_row_groups)]
        bounds = _bounds([column.statistics for column in found])
        if "." not in metadata.schema.column(at).path and bounds is not None:
            name = metadata.schema.column(at).name
            smallest[name], largest[name], nulls[name] = bounds
    return json.dumps(
        {"numRecords": metadata.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}
    )


def _bounds(parts: Sequence[Any]) -> tuple[int | str, int | str, int] | None:
    """The range of integers and short texts only: all readers agree on these, unlike on NaN and timestamps."""
    if not parts or any(part is None or not part.has_min_max or not part.has_null_count for part in parts):
        return None
    low, high = min(part.min for part in parts), max(part.max for part in parts)
    if isinstance(low, bool) or not isinstance(low, int | str):
        return None
    if isinstance(low, str) and max(len(low), len(high)) > MAX_BOUND_LENGTH:
        return None
    return low, high, sum(part.null_count for part in parts)


def delta_options(path: StorePath) -> dict[str, str]:
    """How delta-rs reaches a path: what `spark.hadoop.fs.s3a.` settings say, with its names.

    Endpoint and scheme go together: an endpoint from the environment is used with its own scheme.
    """
    if not isinstance(path, ObjectPath):
        return {}
    config, client = store_config(path.root, path.settings)
    options = {f"AWS_{name.upper()}": value for name, value in config.items()}
    if "AWS_ENDPOINT" in options:
        options["AWS_ENDPOINT_URL"] = options.pop("AWS_ENDPOINT")
    return options | ({"AWS_ALLOW_HTTP": "true"} if client else {})
