"""Targets of every kind."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.files.roots import SERVER
from tests.files.servers import BUCKET
from tests.pipelines.sinks.rest_catalog import rest_catalog_server
from tests.pipelines.sinks.runs import Runs
from tests.pipelines.sinks.targets import (
    DeltaTarget,
    IcebergTarget,
    ParquetTarget,
    PostgresTarget,
    SqliteTarget,
    Target,
    TopicTarget,
)


def _extended(*kinds: str) -> list[Any]:
    return [pytest.param(kind, marks=SERVER) for kind in kinds]


ORDERED = ("delta", "iceberg", "sqlite", "postgres", "parquet", "topic")
"""Targets whose rows have the order of their shard."""
MERGING = (
    "delta",
    "iceberg",
    "sqlite",
    "postgres",
    *_extended("delta on s3", "delta on hdfs", "iceberg in rest-catalog"),
)
FENCING = (*MERGING, "parquet", *_extended("parquet on hdfs", "parquet on s3"))
ALL = (*FENCING, "topic")
CHECKPOINTED = (*(kind for kind in FENCING if kind != "iceberg"), *_extended("iceberg"))
"""For what the pipeline does with a sink's ledger, which is the same code for all of them."""

MOVABLE = ("delta", "sqlite", "postgres", "parquet", *_extended("iceberg"))
"""Targets that a test can move away and back: local folders, and tables that are renamed."""


@pytest.fixture(scope="session")
def rest_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with rest_catalog_server(tmp_path_factory.mktemp("catalog")) as properties:
        yield properties


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """A target of the kind that the test is parametrised with."""
    made = _make(request.param, request, tmp_path)
    yield made
    made.close()


def _make(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    def fixture(name: str) -> Any:
        return request.getfixturevalue(name)

    if kind.endswith(" on hdfs"):
        place = f"{fixture('hdfs')}/{uuid.uuid4().hex}"
        return DeltaTarget(tmp_path, place) if kind.startswith("delta") else ParquetTarget(tmp_path, place)
    if kind.endswith(" on s3"):
        for name, value in fixture("s3").items():
            fixture("monkeypatch").setenv(name, value)
        place = f"s3a://{BUCKET}/{uuid.uuid4().hex}"
        return DeltaTarget(tmp_path, place) if kind.startswith("delta") else ParquetTarget(tmp_path, place)
    if kind == "delta":
        return DeltaTarget(tmp_path)
    if kind == "iceberg":
        return IcebergTarget(tmp_path)
    if kind == "iceberg in rest-catalog":
        return IcebergTarget(tmp_path, fixture("rest_catalog"))
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
