"""Settings of all tests, and fixtures of Spark and pipeline tests.

Hypothesis has no deadlines, because they would only measure how busy a machine is. All Spark tests share a session and
a broker, and each has a topic and a group. Tests of PostgreSQL share a server.
"""

import os
import shutil
import sys
import uuid
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings
from tests import postgres_server, quick_spark
from tests.certificates import Authority, new_authority
from tests.files.roots import hdfs, root, s3  # noqa: F401

from lanemq.background_log import LINES
from lanemq.client.admin.admin import Admin
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.testing.plugin import lanemq_broker as lanemq_broker
from lanemq.testing.plugin import lanemq_group as lanemq_group
from lanemq.testing.plugin import lanemq_session_broker as lanemq_session_broker
from lanemq.testing.plugin import lanemq_topic as lanemq_topic

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.update(quick_spark.environment())

SLOW_SECONDS = 900
"""Default time limit of a slow test: on a busy machine a JVM takes minutes to start."""
MIN_EXAMPLES = 20
"""Examples of a property that `make check` takes at least."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks tests with servers as slow, which `make check` leaves out (`tests/fast_tests.py`).

    Where tests run in parallel, those that share a Spark session run in one process, those that start Spark in
    processes of their own in another, so that at most two of them use Java, and those that share a PostgreSQL server in
    a third. Tests that share a fixture of their module or folder run in one process too: each process would make it
    again. Long tests come first: one that started last would run alone.
    """
    _take_fewer_examples(items, int(os.environ.get("LANEMQ_FEWER_EXAMPLES", "1")))
    for item in items:
        if (server := _server(item)) is not None:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group(server))
        elif item.get_closest_marker("driver"):
            item.add_marker(pytest.mark.xdist_group("drivers"))
        elif not item.get_closest_marker("xdist_group") and (sharing := _sharing(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(sharing))
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
        _show_groups(items)


def _server(item: pytest.Item) -> str | None:
    """The group of tests with which this one shares a large server; None if it needs none.

    A sink or a form of a database gets its server by name, from a fixture that does not say which.
    """
    fixtures, call = {*getattr(item, "fixturenames", ())}, getattr(item, "callspec", None)
    target, form = (None, None) if call is None else (call.params.get("target"), call.params.get("form"))
    if "spark" in fixtures or target == "topic":
        return "one Spark session"
    is_postgres = "postgres" in fixtures or target == "postgres"
    if is_postgres or (form is not None and item.get_closest_marker("slow")):
        return "one PostgreSQL server"
    return None


def _sharing(item: pytest.Item) -> str | None:
    """The module or folder with whose tests this one shares a fixture; None if there is none."""
    info = getattr(item, "_fixtureinfo", None)
    scopes = set() if info is None else {found[-1].scope for found in info.name2fixturedefs.values()}
    module = item.nodeid.partition("::")[0]
    if "package" in scopes:
        return module.rpartition("/")[0]
    return module if "module" in scopes else None


def _take_fewer_examples(items: list[pytest.Item], divisor: int) -> None:
    """Divides the number of examples of each property and state machine; `make test` takes all of them."""
    tests = [item for item in items if isinstance(item, pytest.Function)] if divisor > 1 else []
    properties = {(item.function, "_hypothesis_internal_use_settings") for item in tests}
    machines = {(item.cls, "settings") for item in tests if item.cls is not None}
    for owner, name in properties | machines:
        found = getattr(owner, name, None)
        if isinstance(found, settings):
            count = min(found.max_examples, max(MIN_EXAMPLES, found.max_examples // divisor))
            setattr(owner, name, settings(found, max_examples=count))


def _show_groups(items: list[pytest.Item]) -> None:
    """Ends the ids of grouped tests with `@group`, which is what the scheduler of xdist reads.

    xdist 3.8 does it too, but in an attribute that pytest 9.2 does not have any more: groups had no effect, and every
    process started a Spark session.
    """
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group is not None and hasattr(item, "_id"):
            item._id = type(item.id).parse(f"{item.nodeid}@{group.args[0]}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escapes lone surrogates in captured output: a report that is not UTF-8 would end the worker process."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


class WholeLog(pytest.LogCaptureFixture):
    """What was logged, with the records that the log's thread has not written yet."""

    @property
    def handler(self) -> Any:
        assert LINES.drain(10)
        return super().handler


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.__class__ = WholeLog
    return caplog


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_server.Server]:
    reason = postgres_server.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with postgres_server.running_server() as server:
        yield server


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session for all tests, because starting another takes as long as its tests."""
    if shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}") is None:
        pytest.skip("Spark needs a Java runtime, version 17 or newer: scripts/java.sh says how to get one")
    from lanemq.spark import recommended, register

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


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates of tests with TLS."""
    return new_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def broker(lanemq_session_broker: EmbeddedBroker) -> EmbeddedBroker:
    """The broker of the testing kit, shared: every test has a topic and a group of its own."""
    return lanemq_session_broker


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """A topic of two queues that no other test knows."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    with Admin(broker.address, timeout=60) as admin:
        admin.create_topic(name, 2)
    return name


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"
