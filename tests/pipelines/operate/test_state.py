"""`lane_state`, `state_table` and `lanemq pipeline state`: the state of keys, as the last finished batch left it."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.pipelines.operate.test_parked import stopped
from tests.pipelines.stages.transitions.pipeline_fixture import Sent

from lanemq.cli.main import main
from lanemq.model.errors import UsageError
from lanemq.pipelines import Park, lane_state, state_table


def test_all_keys_are_one_table(tmp_path: Path) -> None:
    pipeline = stopped(tmp_path, Park())
    pipeline.process(Sent(1, 0, None, 7), Sent(1, 1, "d", 8))  # one without a key is a dead letter
    table = state_table(tmp_path)
    rows = {row["key"]: row for row in table.to_pylist()}
    assert set(rows) == {"a", "b", "c", "d"}
    assert {key: row["waiting"] for key, row in rows.items()} == dict.fromkeys(rows) | {"a": "parked", "b": "parked"}
    for key in ("c", "d"):
        assert json.loads(rows[key]["state"]) == lane_state(tmp_path, key).state is not None
        assert rows[key]["seen_at"] == lane_state(tmp_path, key).seen_at is not None
    with pytest.raises(UsageError, match="'x' is unknown"):
        lane_state(tmp_path, "x")


def test_what_a_batch_did_is_seen_only_when_it_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a batch are there before its end: only its record makes them count."""
    pipeline = stopped(tmp_path, Park())
    before = state_table(tmp_path)

    def dies(*_: Any, **__: Any) -> None:
        raise RuntimeError("the driver died")

    monkeypatch.setattr(type(pipeline.units), "record", dies)
    with pytest.raises(RuntimeError, match="the driver died"):
        pipeline.process(Sent(0, 4, "c", 5))
    assert state_table(tmp_path).equals(before)


def asked(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["pipeline", "state", *arguments])


def test_the_command_shows_one_key_or_all_or_writes_a_file(tmp_path: Path) -> None:
    stopped(tmp_path / "checkpoint", Park())
    place = str(tmp_path / "checkpoint")
    one = json.loads(asked(place, "c", "--json").stdout)
    assert (one["key"], one["waiting"]) == ("c", None)
    assert "key a: parked, state" in asked(place, "a").stdout
    listed = json.loads(asked(place, "--json", "--limit", "2").stdout)
    assert (listed["keys"], [row["key"] for row in listed["states"]]) == (3, ["a", "b"])
    assert "3 keys" in asked(place, "--limit", "2").stdout
    assert "3 keys" in asked(place, "--into", str(tmp_path / "state.parquet")).stdout
    assert pq.read_table(tmp_path / "state.parquet").equals(state_table(place))
    assert asked(place, "x").exit_code == 1
    assert asked(place, "a", "--into", "f").exit_code == 2
