"""`is_committed`: whether Spark's checkpoint records a batch as done, also with several sources."""

import json
from pathlib import Path

import pytest

from lanemq.spark.offsets import OffsetJson, from_json
from lanemq.spark.read.stream_driver import is_committed

ORDERS: OffsetJson = {"orders": {"b/0": 5, "b/1": 7}}
PAYMENTS: OffsetJson = {"payments": {"b/0": 3}}


def done(folder: Path, *sources: object) -> str:
    """A checkpoint whose last batch is done and has these ends."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
        (folder / name / "4").write_text("\n".join(["v1", "{}", *(json.dumps(each) for each in sources)]))
    return str(folder)


@pytest.mark.parametrize("ours", [ORDERS, PAYMENTS])
def test_each_source_finds_its_own_end(tmp_path: Path, ours: OffsetJson) -> None:
    checkpoint = done(tmp_path, ORDERS, 17, {"logOffset": 2}, PAYMENTS)
    assert is_committed(checkpoint, from_json(ours))


def test_another_end_of_the_same_topic_does_not_match(tmp_path: Path) -> None:
    assert not is_committed(done(tmp_path, PAYMENTS, {"orders": {"b/0": 5, "b/1": 6}}), from_json(ORDERS))


def test_a_source_does_not_answer_for_another_of_the_same_topic(tmp_path: Path) -> None:
    """One of two sources of a topic is at this end, and it may be the other one."""
    checkpoint = done(tmp_path, {"orders": {"b/0": 0, "b/1": 0}}, ORDERS)
    assert not is_committed(checkpoint, from_json(ORDERS))
