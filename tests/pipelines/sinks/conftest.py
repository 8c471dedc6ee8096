"""Targets of every kind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.sinks.runs import Runs
from tests.pipelines.sinks.targets import DeltaTarget, ParquetTarget, PostgresTarget, SqliteTarget, Target, TopicTarget

MERGING = ("delta", "sqlite", "postgres")
FENCING = (*MERGING, "parquet")
ALL = (*FENCING, "topic")


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """A target of the kind that the test is parametrised with."""
    made = _make(request.param, request, tmp_path)
    yield made
    made.close()


def _make(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    def fixture(name: str) -> Any:
        return request.getfixturevalue(name)

    if kind == "delta":
        return DeltaTarget(tmp_path)
    if kind == "parquet":
        return ParquetTarget(tmp_path)
    if kind == "sqlite":
        return SqliteTarget(tmp_path)
    if kind == "postgres":
        return PostgresTarget(tmp_path, fixture("postgres").dsn)
    return TopicTarget(tmp_path, fixture("broker").address, fixture("topic"), fixture("spark"))


@pytest.fixture
def runs(target: Target, tmp_path: Path) -> Iterator[Runs]:
    made = Runs(target, tmp_path / "checkpoint")
    yield made
    made.crash()
