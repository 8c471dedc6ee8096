"""The topic sink with a broker that requires TLS and credentials."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority
from tests.guarded_broker import SECRET, guarded_broker
from tests.pipelines.sinks.targets import EVENTS, WAIT, TopicTarget, named

from lanemq import Admin, Credentials, TlsOptions
from lanemq.broker.config import BrokerOptions
from lanemq.model.errors import InvalidOption, LaneError
from lanemq.net.address import Address
from lanemq.pipelines import TopicSink, open_sink
from lanemq.pipelines.ports import Append, SinkRun
from lanemq.testing.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def guarded(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with guarded_broker(authority, tmp_path_factory.mktemp("broker")) as running:
        yield running


def sent_through(sink: Any, guarded: EmbeddedBroker, authority: Authority, topic: str, folder: Path) -> int:
    """The number of messages in the topic after one batch of three rows."""
    target = TopicTarget(folder, guarded.address, topic, None)
    with Admin(guarded.address, tls=TlsOptions(authority.ca), credentials=Credentials("root", SECRET)) as admin:
        admin.create_topic(topic, 2, ordered=True)
        try:
            sink.open(SinkRun(None, "q", 1, EVENTS, Append(), pipeline="orders"))
            assert sink.write(target.batch_rows(a=[1, 2, 3]), named(1, 0, "q"))
        finally:
            sink.close()
        return sum(queue.end for queue in admin.describe_topic(topic).queues)


def test_declared_tls_and_credentials_are_used(guarded: EmbeddedBroker, authority: Authority, tmp_path: Path) -> None:
    options = {"servers": guarded.address, "topic": "declared", "key": "shard", "wait": 3_000}
    secure = {"tls": {"ca": str(authority.ca)}, "accessKey": "root", "secretKey": SECRET}
    assert sent_through(open_sink("topic", {**options, **secure}), guarded, authority, "declared", tmp_path) == 3


def test_undeclared_tls_and_credentials_come_from_the_environment(
    guarded: EmbeddedBroker, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TLS_CA": str(authority.ca), "ACCESS_KEY": "root", "SECRET_KEY": SECRET}.items():
        monkeypatch.setenv(f"LANEMQ_{name}", value)
    sink = TopicSink(guarded.address, "by_environment", key="shard", wait=WAIT)
    assert sent_through(sink, guarded, authority, "by_environment", tmp_path) == 3


def test_tls_and_credentials_can_be_given_in_python(
    guarded: EmbeddedBroker, authority: Authority, tmp_path: Path
) -> None:
    tls, credentials = TlsOptions(authority.ca), Credentials("root", SECRET)
    sink = TopicSink(guarded.address, "by_value", key="shard", wait=WAIT, tls=tls, credentials=credentials)
    assert sent_through(sink, guarded, authority, "by_value", tmp_path) == 3


def test_a_wrong_secret_is_refused(guarded: EmbeddedBroker, authority: Authority, tmp_path: Path) -> None:
    tls, credentials = TlsOptions(authority.ca), Credentials("root", "not-the-secret")
    sink = TopicSink(guarded.address, "refused", key="shard", wait=WAIT, tls=tls, credentials=credentials)
    with pytest.raises(LaneError):
        sent_through(sink, guarded, authority, "refused", tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tls.ca": "x.pem", "tls": "false"}, "contradicts tls=false"),
        ({"accesKey": "root"}, "accesKey: a sink of kind topic has no such option.*accessKey"),
        ({"accessKey": "root", "secretKey": "s", "secretKeyFile": "f"}, "contradicts secretKey"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        open_sink("topic", {"servers": "h:9876", "topic": "t", **options})


def test_a_user_who_may_only_send_is_told_that_the_owner_is_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = tmp_path / "users.toml"
    users.write_text(
        f'[[user]]\naccess_key = "root"\nsecret_key = "{SECRET}"\nadmin = true\n'
        f'[[user]]\naccess_key = "etl"\nsecret_key = "{SECRET}"\ntopics = {{ sent = "PUB" }}\n'
    )
    users.chmod(0o600)
    options = BrokerOptions(tmp_path / "data", listen=Address("127.0.0.1", 0), users=users)
    with (
        EmbeddedBroker(options) as running,
        Admin(running.address, credentials=Credentials("root", SECRET)) as admin,
    ):
        admin.create_topic("sent", 2, ordered=True)
        sink = TopicSink(running.address, "sent", key="shard", wait=WAIT, credentials=Credentials("etl", SECRET))
        rows = TopicTarget(tmp_path, running.address, "sent", None).batch_rows(a=[1])
        for number in range(2):
            sink.open(SinkRun(None, "q", 1, EVENTS, Append(), pipeline="orders"))  # type: ignore[arg-type]
            sink.write(rows, named(1, number, "q"))
        assert sum(queue.end for queue in admin.describe_topic("sent").queues) == 2
    assert "grant the right to read" in caplog.text
