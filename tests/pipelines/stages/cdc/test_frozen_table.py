"""A restart with other keys or another sequence is refused."""

from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.stages.cdc.replica_fixture import Replica, messages

from lanemq.model.errors import InvalidOption
from lanemq.pipelines import LastState

COLUMNS = "id bigint, region string, ts bigint, lsn bigint"
ROW = {"id": 1, "region": "eu", "ts": 5, "lsn": 7}


def stage(keys: list[str] | None = None, **options: Any) -> LastState:
    return LastState(COLUMNS, keys or ["id"], **options)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (stage(), stage(["id", "region"]), "keys is id, region, but .* have the key id:"),
        (stage(sequence=["ts", "lsn"]), stage(sequence=["lsn"]), "sequence is lsn:number, but .* ts:number, lsn:"),
        (stage(sequence=["ts", "lsn"]), stage(sequence=["lsn", "ts"]), "newer changes would lose"),
        (stage(sequence=["lsn"]), stage(sequence=["lsn:text"]), "lsn:text"),
        (stage(), stage(sequence=["lsn"]), "none \\(queue offsets\\)"),
        (stage(sequence=["lsn"]), stage(), "begin with an empty table and an empty checkpoint"),
    ],
)
def test_a_restart_with_other_keys_or_another_sequence_is_refused(
    tmp_path: Path, before: LastState, after: LastState, words: str
) -> None:
    Replica(before, tmp_path).process(messages([("k", ROW)]))
    with pytest.raises(InvalidOption, match=words):
        Replica(after, tmp_path)
    Replica(before, tmp_path)


def test_the_order_of_key_columns_and_other_options_may_change(tmp_path: Path) -> None:
    Replica(stage(["id", "region"]), tmp_path).process(messages([("k", ROW)]))
    Replica(LastState(COLUMNS + ", more int", ["region", "id"], misfits="dead_letter"), tmp_path)


def test_a_start_without_a_batch_freezes_no_options(tmp_path: Path) -> None:
    """The sink often refuses the first start because of wrong keys."""
    Replica(stage(["region"]), tmp_path)
    Replica(stage(), tmp_path)


def test_a_checkpoint_without_recorded_options_continues(tmp_path: Path) -> None:
    Replica(stage(), tmp_path).process(messages([("k", ROW)]))
    (tmp_path / "table.json").unlink()
    Replica(stage(), tmp_path).process(messages([("k", ROW)], first=1))
    assert (tmp_path / "table.json").exists()
