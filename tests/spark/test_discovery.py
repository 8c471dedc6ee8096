"""Spark finds `format("lanemq")` without `register`, and LaneMQ recognises sessions of Spark Connect."""

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.errors import AnalysisException
from tests.spark.spark_driver import send

from lanemq.model.errors import UsageError
from lanemq.pipelines import DeltaSink, LastState, Pipeline, Topic
from lanemq.pipelines.running.runner import start
from lanemq.spark import register
from lanemq.spark.session import is_connect
from lanemq.testing.embedded import EmbeddedBroker


class Registry:
    """Spark's list of sources; it may refuse to replace one."""

    def __init__(self, refusal: AnalysisException | None = None) -> None:
        self.registered: list[object] = []
        self._refusal = refusal

    def register(self, source: object) -> None:
        if self._refusal is not None:
            raise self._refusal
        self.registered.append(source)


class ConnectSession:
    """A session of Spark Connect, as far as LaneMQ looks at it: it has no `sparkContext`."""

    __module__ = "pyspark.sql.connect.session"
    conf: ClassVar[dict[str, str]] = {}

    def __init__(self, refusal: AnalysisException | None = None) -> None:
        self.dataSource = Registry(refusal)


def refusal(condition: str) -> AnalysisException:
    return AnalysisException("refused", errorClass=condition, messageParameters={})


@pytest.mark.slow
def test_spark_finds_the_source_without_register(spark: Any, broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(20))
    unregistered = spark.newSession()
    rows = unregistered.read.format("lanemq").option("servers", broker.address).option("topic", topic).load()
    assert rows.count() == 20


def test_an_application_that_does_not_use_the_format_imports_nothing_of_lanemq() -> None:
    """If the import failed, or were slow, every other Python source of the application would be affected."""
    code = "import sys, pyspark_lanemq; print(pyspark_lanemq.DefaultSource.name(), 'lanemq' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "lanemq False\n"


def test_a_package_that_the_format_needs_is_named_when_a_query_uses_it() -> None:
    code = "import sys, pyspark_lanemq; sys.modules['pyarrow'] = None; pyspark_lanemq.DefaultSource(options={})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "lanemq.spark needs pyarrow: install what the extra `spark` has" in run.stderr


def test_the_source_is_registered_with_a_session_of_spark_connect() -> None:
    session: Any = ConnectSession()
    register(session)
    assert len(session.dataSource.registered) == 1


def test_a_source_that_spark_found_itself_need_not_be_registered() -> None:
    """PySpark 4.0 refuses to replace it, 4.3 replaces it."""
    session: Any = ConnectSession(refusal("DATA_SOURCE_ALREADY_EXISTS"))
    register(session)
    other: Any = ConnectSession(refusal("UNSUPPORTED_FEATURE"))
    with pytest.raises(AnalysisException):
        register(other)


def test_a_pipeline_refuses_a_session_of_spark_connect_before_it_writes_anything(tmp_path: Path) -> None:
    session: Any = ConnectSession()
    assert is_connect(session)
    source, sink = Topic("localhost:9876", "orders"), DeltaSink(tmp_path / "table")
    stage = LastState("id bigint", ["id"])
    pipeline = Pipeline("orders", source, stage=stage, sink=sink, checkpoint=str(tmp_path / "checkpoint"))
    with pytest.raises(UsageError, match="Spark Connect"):
        start(pipeline, session)
    assert list(tmp_path.iterdir()) == []
