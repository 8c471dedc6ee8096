"""Queries with TLS and credentials, and whether Spark shows their secrets."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.certificates import Authority
from tests.guarded_broker import SECRET, guarded_broker

from lanemq import Admin, Credentials, Producer, TlsOptions
from lanemq.pipelines.source import Topic
from lanemq.spark import LagListener, QueueLag
from lanemq.spark.options import parse_read_options
from lanemq.testing.embedded import EmbeddedBroker

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def guarded(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with TLS and users, and twenty messages of four keys in `orders`."""
    with guarded_broker(authority, tmp_path_factory.mktemp("broker")) as running:
        how = {"tls": TlsOptions(authority.ca), "credentials": Credentials("root", SECRET)}
        with Admin(running.address, **how) as admin, Producer(running.address, **how) as producer:
            admin.create_topic("orders", 2, ordered=True)
            admin.create_topic("copies", 2, ordered=True)
            for number in range(20):
                producer.send("orders", number, key=f"k{number % 4}")
        yield running


def options_for(guarded: EmbeddedBroker, authority: Authority, **more: str) -> dict[str, str]:
    secure = {"tls.ca": str(authority.ca), "accessKey": "root", "secretKey": SECRET}
    return {"servers": guarded.address, "topic": "orders", **secure, **more}


@pytest.mark.slow
def test_a_query_reads_and_writes_with_tls_and_credentials(
    spark: Any, guarded: EmbeddedBroker, authority: Authority, tmp_path: Path
) -> None:
    """A stream that stores its offsets for a group, in driver and executors, and the sink."""
    given = options_for(guarded, authority, group="spark", startingOffsets="earliest")
    copy = options_for(guarded, authority, topic="copies", checkpointLocation=str(tmp_path / "checkpoint"))
    stream = spark.readStream.format("lanemq").options(**given).load().select("key", "value")
    query = stream.writeStream.format("lanemq").options(**copy).trigger(availableNow=True).start()
    query.awaitTermination()
    assert SECRET not in str(query.lastProgress)
    kept = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert kept
    assert not any(SECRET.encode() in path.read_bytes() for path in kept)
    read = spark.read.format("lanemq").options(**options_for(guarded, authority, topic="copies")).load()
    assert sorted(int(bytes(row.value)) for row in read.select("value").collect()) == list(range(20))


@pytest.mark.slow
def test_spark_shows_no_secret(spark: Any, guarded: EmbeddedBroker, authority: Authority) -> None:
    """Spark redacts options whose names look secret; these names do."""
    read = spark.read.format("lanemq").options(**options_for(guarded, authority)).load()
    plans = read._jdf.queryExecution()
    assert SECRET not in plans.toString()
    assert SECRET not in plans.explainString(_extended(spark))
    assert SECRET not in repr(read)
    given = spark._jvm.PythonUtils.toScalaMap(options_for(guarded, authority, securityToken=SECRET))
    shown = spark._jsparkSession.sessionState().conf().redactOptions(given).toString()
    assert SECRET not in shown
    assert guarded.address in shown


def _extended(spark: Any) -> Any:
    return spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")


@pytest.mark.slow
def test_an_error_shows_no_secret(spark: Any, guarded: EmbeddedBroker, authority: Authority) -> None:
    wrong = options_for(guarded, authority) | {"accessKey": "absent", "brokerWait": "1s"}
    with pytest.raises(Exception, match="the access key 'absent' is unknown or the signature is wrong") as refused:
        spark.read.format("lanemq").options(**wrong).load().collect()
    assert SECRET not in str(refused.value)


def test_a_listener_measures_seconds_with_tls_and_credentials(guarded: EmbeddedBroker, authority: Authority) -> None:
    how = {"tls": TlsOptions(authority.ca), "credentials": Credentials("root", SECRET)}
    with Admin(guarded.address, **how) as admin:
        queue = next(each.queue for each in admin.describe_topic("orders").queues if each.end)
    offsets = [json.dumps({queue.topic: {f"{queue.broker}/{queue.queue_id}": at}}) for at in (0, 1)]
    source = {"startOffset": offsets[0], "endOffset": offsets[0], "latestOffset": offsets[1]}
    event = SimpleNamespace(progress=SimpleNamespace(json=json.dumps({"name": "q", "id": "1", "sources": [source]})))
    heard: list[QueueLag] = []
    listener = LagListener(lambda _, queues: heard.extend(queues), guarded.address, **how)
    listener.onQueryProgress(event)
    listener.close()
    assert heard[0].seconds is not None


def test_options_and_declared_sources_show_no_secret(guarded: EmbeddedBroker, authority: Authority) -> None:
    given = options_for(guarded, authority)
    assert SECRET not in repr(parse_read_options(given, streaming=True))
    assert SECRET not in repr(Topic(**given))
    assert SECRET not in str(Topic(**given).public_options)


def test_a_declared_source_takes_tls_as_a_table(authority: Authority) -> None:
    """In TOML: tls.ca = "..." below [source]."""
    source = Topic("localhost:9876", "orders", tls={"ca": str(authority.ca), "verify": "ca"})
    tls = source.parsed.security.tls
    assert tls is not None
    assert (tls.ca, tls.verify_host) == (str(authority.ca), False)


def test_missing_security_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEMQ_ACCESS_KEY", "root")
    monkeypatch.setenv("LANEMQ_SECRET_KEY", SECRET)
    parsed = parse_read_options({"servers": "localhost:9876", "topic": "orders"}, streaming=True)
    assert parsed.security.credentials == Credentials("root", SECRET)
    named = parse_read_options({"servers": "x", "topic": "orders", "accessKey": "other"}, streaming=True)
    assert named.security.credentials == Credentials("other", SECRET)
