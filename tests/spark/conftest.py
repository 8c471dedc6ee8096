"""A broker per test that needs one, and one Spark session for the whole run."""

import os
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from lanemq.client.admin import Admin
from lanemq.spark import recommended, register
from lanemq.testing.embedded import EmbeddedBroker

os.environ["PYSPARK_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """Shared: every test has a topic and a group of its own."""
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """A topic of two queues that no other test knows."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    with Admin(broker.address) as admin:
        admin.create_topic(name, 2)
    return name


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    builder = recommended().master("local[2]").appName("lanemq-tests")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    yield session
    session.stop()
