"""Clients at a broker with TLS and access control: what works, and the errors when it does not."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority, new_authority
from tests.documents import snippets

from lanemq import (
    Admin,
    App,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Credentials,
    Message,
    ParkedAdmin,
    Producer,
    PullConsumer,
    PushConsumer,
    TlsOptions,
)
from lanemq.broker.config import BrokerOptions
from lanemq.client.consumer.options import StartFrom
from lanemq.client.consumer.turns.handler import OrderlyStatus, ToDeadLetter
from lanemq.client.security import security_of, security_of_side
from lanemq.core.consuming.retry_policy import DeadLetter
from lanemq.model.errors import InvalidOption, LaneError, NotAllowed, TlsFailed, TopicNotFound
from lanemq.net.address import Address
from lanemq.net.serving.server_tls import ServerTls
from lanemq.testing.embedded import EmbeddedBroker

USERS = """
[[user]]
access_key = "root"
secret_key = "the root of all"
admin = true

[[user]]
access_key = "shop"
secret_key = "shop's secret"
topics = { orders = "PUB|SUB", audit = "PUB" }
groups = { other = "DENY", reader = "SUB", async = "SUB", app = "SUB", push = "SUB", pull = "SUB", dead = "SUB" }

[[user]]
access_key = "billing"
secret_key = "s3cret-of-billing"
topics = { orders = "PUB" }

[[user]]
access_key = "guest"
secret_key = "guest's secret"
topics = { orders = "PUB|SUB" }
"""
ROOT = Credentials("root", "the root of all")
SHOP = Credentials("shop", "shop's secret")
GUEST = Credentials("guest", "guest's secret")


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with TLS and access control, and the topics `orders`, `audit` and `private`."""
    folder, identity = tmp_path_factory.mktemp("broker"), authority.issue("broker")
    (folder / "users.toml").write_text(USERS)
    options = BrokerOptions(
        folder / "data",
        listen=Address("127.0.0.1", 0),
        tls=ServerTls(identity.cert, identity.key),
        users=folder / "users.toml",
    )
    with EmbeddedBroker(options) as running:
        with Admin(running.address, tls=TlsOptions(authority.ca), credentials=ROOT) as admin:
            for name in ("orders", "audit", "private"):
                admin.create_topic(name, 2, ordered=True)
        yield running


@pytest.fixture
def tls(authority: Authority) -> TlsOptions:
    return TlsOptions(authority.ca)


def test_a_producer_and_a_consumer_work_encrypted_and_signed(broker: EmbeddedBroker, tls: TlsOptions) -> None:
    with Producer(broker.address, tls=tls, credentials=SHOP) as producer:
        for number in range(20):
            producer.send("orders", number, key="a")
        producer.send_many("orders", [(key, 1) for key in "bcdefgh"])
    assert [message.value() for message in _read(broker, tls, 27) if message.key == "a"] == list(range(20))


def _read(broker: EmbeddedBroker, tls: TlsOptions, count: int) -> list[Message]:
    found = []
    with Consumer(broker.address, group="reader", topics=["orders"], tls=tls, credentials=SHOP) as consumer:
        while len(found) < count:
            message = consumer.poll(20)
            assert message is not None, f"only {len(found)} of {count} came"
            consumer.done(message)
            found.append(message)
    return found


def test_the_producer_of_the_guide_sends(broker: EmbeddedBroker, authority: Authority) -> None:
    (shown,) = [each for each in snippets("python") if "tests/client/test_security.py" in (each.not_run or "")]
    names: dict[str, Any] = {}
    code = shown.code.replace("broker.example.com:9876", broker.address).replace("ca.pem", str(authority.ca))
    exec(compile(code, shown.name, "exec"), names)
    with names["producer"] as producer:
        assert producer.send("orders", {"id": 42}, key="guide").queue.topic == "orders"


def test_asyncio_clients_work_encrypted_and_signed(broker: EmbeddedBroker, tls: TlsOptions) -> None:
    async def send_and_receive() -> list[object]:
        async with AsyncProducer(broker.address, tls=tls, credentials=SHOP) as producer:
            for number in range(5):
                await producer.send("orders", f"async {number}", key="async")
        values: list[object] = []
        consumer = AsyncConsumer(broker.address, group="async", topics=["orders"], tls=tls, credentials=SHOP)
        async with consumer:
            while len(values) < 5:
                message = await consumer.poll(20)
                assert message is not None
                await consumer.done(message)
                if message.key == "async":
                    values.append(message.value())
        return values

    assert asyncio.run(send_and_receive()) == [f"async {number}" for number in range(5)]


def test_apps_push_and_pull_consumers_work_encrypted_and_signed(broker: EmbeddedBroker, tls: TlsOptions) -> None:
    with Producer(broker.address, tls=tls, credentials=SHOP) as producer:
        producer.send("orders", "for all", key="all")
    heard = {"app": threading.Event(), "push": threading.Event()}
    app = App(broker.address, group="app", tls=tls, credentials=SHOP)

    @app.ordered("orders")
    def handle(message: Message) -> None:
        if message.key == "all":
            heard["app"].set()

    def listen(messages: list[Message], _: object) -> OrderlyStatus:
        if any(message.key == "all" for message in messages):
            heard["push"].set()
        return OrderlyStatus.SUCCESS

    push = PushConsumer(broker.address, group="push", start=StartFrom.FIRST, tls=tls, credentials=SHOP)
    push.subscribe("orders")
    push.register_orderly(listen)
    push.start()
    with app:
        assert all(each.wait(20) for each in heard.values())
    push.shutdown()
    with PullConsumer(broker.address, group="pull", tls=tls, credentials=SHOP) as pull:
        pull.assign(pull.queues("orders"))
        assert any(message.key == "all" for _ in range(100) for message in pull.poll(0.2))
        pull.commit()


def test_a_producer_goes_on_encrypted_after_a_restart_of_the_broker(tmp_path: Path, authority: Authority) -> None:
    identity = authority.issue("restarted")
    options = BrokerOptions(
        tmp_path / "data", listen=Address("127.0.0.1", 0), tls=ServerTls(identity.cert, identity.key)
    )
    running = EmbeddedBroker(options).start()
    with Producer(running.address, tls=TlsOptions(authority.ca), timeout=30.0, create="orders") as producer:
        producer.send("orders", 1, key="a")
        running.stop()
        running.start()
        assert producer.send("orders", 2, key="a").offset == 1
    running.stop()


def test_a_send_without_credentials_is_refused_with_advice(broker: EmbeddedBroker, tls: TlsOptions) -> None:
    with (
        Producer(broker.address, tls=tls) as producer,
        pytest.raises(NotAllowed, match="this broker takes signed requests only: connect with credentials"),
    ):
        producer.send("orders", 1, key="a")


@pytest.mark.parametrize("wrong", [replace(SHOP, secret_key="shop's other secret"), replace(SHOP, access_key="absent")])
def test_a_wrong_secret_and_an_unknown_user_get_the_same_error(
    broker: EmbeddedBroker, tls: TlsOptions, wrong: Credentials
) -> None:
    """An attacker must not learn which half is right."""
    with Admin(broker.address, tls=tls, credentials=wrong) as admin, pytest.raises(NotAllowed) as refused:
        admin.describe_topic("orders")
    remark = (
        f"the access key {wrong.access_key!r} is unknown or the signature is wrong: check access key and secret key"
    )
    assert refused.value.remark == remark
    assert refused.value.code == 16


def test_a_topic_without_the_right_is_refused(broker: EmbeddedBroker, tls: TlsOptions) -> None:
    with Producer(broker.address, tls=tls, credentials=SHOP) as producer:
        producer.send("audit", 1, key="a")
        with pytest.raises(NotAllowed, match="user 'shop' may not send to topic 'private'"):
            producer.send("private", 1, key="a")
    with (
        PullConsumer(broker.address, group="pull", tls=tls, credentials=SHOP) as pull,
        pytest.raises(NotAllowed, match="user 'shop' may not consume from topic 'audit'"),
    ):
        pull.assign(pull.queues("audit"))


def test_administration_is_for_administrators(broker: EmbeddedBroker, tls: TlsOptions) -> None:
    with Admin(broker.address, tls=tls, credentials=SHOP) as admin:
        assert {"orders", "private"} <= set(admin.topics())
        for forbidden in (lambda: admin.create_topic("mine"), lambda: admin.delete_topic("orders")):
            with pytest.raises(NotAllowed, match="user 'shop' may not do this: only administrators may"):
                forbidden()
    with (
        ParkedAdmin(broker.address, tls=tls, credentials=SHOP) as parked,
        pytest.raises(NotAllowed, match="only administrators may"),
    ):
        list(parked.lanes())


def test_a_consumer_of_a_forbidden_group_is_refused(broker: EmbeddedBroker, tls: TlsOptions) -> None:
    with (
        PullConsumer(broker.address, group="other", tls=tls, credentials=SHOP) as pull,
        pytest.raises(NotAllowed, match="may not consume from group 'other'"),
    ):
        pull.assign(pull.queues("orders"))


def test_dead_letters_belong_to_the_group_that_wrote_them(broker: EmbeddedBroker, tls: TlsOptions) -> None:
    """SUB on the group allows writing and reading them; the right to read the topic allows neither."""
    app = App(broker.address, group="dead", start=StartFrom.FIRST, tls=tls, credentials=SHOP)

    @app.ordered("orders", on_fail=DeadLetter(skip=True))
    def handle(message: Message) -> None:
        if message.key == "buried":
            raise ToDeadLetter("no")

    with Producer(broker.address, tls=tls, credentials=GUEST) as producer:
        producer.send("orders", "a secret", key="buried")
        with app, PullConsumer(broker.address, group="dead", tls=tls, credentials=SHOP) as pull:
            assert "a secret" in _dead_letters(pull)
        for topic in ("%DLQ%dead", "%RETRY%dead"):
            with pytest.raises(NotAllowed, match=f"user 'guest' may not send to topic '{topic}'"):
                producer.send(topic, "forged", queue=0)
    with (
        PullConsumer(broker.address, group="guest", tls=tls, credentials=GUEST) as pull,
        pytest.raises(NotAllowed, match="user 'guest' may not consume from topic '%DLQ%dead'"),
    ):
        pull.assign(pull.queues("%DLQ%dead"))


def _dead_letters(pull: PullConsumer) -> list[object]:
    """The dead letters of group `dead`, once there are any."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(TopicNotFound):
            pull.assign(pull.queues("%DLQ%dead"))
            pull.seek_to_first()
            if found := [message.value() for message in pull.poll(0.2)]:
                return found
        threading.Event().wait(0.05)
    raise AssertionError("no dead letter came in time")


def test_an_untrusted_broker_gets_no_request(broker: EmbeddedBroker, tmp_path: Path) -> None:
    stranger = new_authority(tmp_path)
    with (
        Admin(broker.address, tls=TlsOptions(stranger.ca), credentials=SHOP) as admin,
        pytest.raises(TlsFailed, match="not signed by an authority in"),
    ):
        admin.topics()


def test_the_error_of_an_unencrypted_producer_mentions_tls(broker: EmbeddedBroker) -> None:
    with (
        Producer(broker.address, delivery_timeout=1.0) as producer,
        pytest.raises(LaneError, match=r"takes nothing but TLS .then connect with tls"),
    ):
        producer.send("orders", 1, key="a")


def test_the_environment_protects_clients_without_options(
    broker: EmbeddedBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANEMQ_TLS_CA", str(authority.ca))
    monkeypatch.setenv("LANEMQ_ACCESS_KEY", SHOP.access_key)
    monkeypatch.setenv("LANEMQ_SECRET_KEY", SHOP.secret_key)
    with Producer(broker.address) as producer, Admin(broker.address) as admin:
        producer.send("orders", 1, key="environment")
        assert len(admin.describe_topic("orders").queues) == 2


def test_arguments_win_over_the_environment() -> None:
    names = {"LANEMQ_TLS": "on", "LANEMQ_ACCESS_KEY": "env", "LANEMQ_SECRET_KEY": "env secret"}
    own = TlsOptions(insecure_skip_verify=True)
    found = security_of(own, SHOP, environment=names)
    assert (found.tls, found.credentials) == (own, SHOP)
    assert security_of(environment=names).credentials == Credentials("env", "env secret")


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    names = {"LANEMQ_ACCESS_KEY": "user", "LANEMQ_SECRET_KEY_FILE": str(tmp_path / "secret")}
    assert security_of(environment=names).credentials == Credentials("user", "from a file")


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ({"LANEMQ_ACCESS_KEY": "user"}, "LANEMQ_ACCESS_KEY is set and LANEMQ_SECRET_KEY is not"),
        ({"LANEMQ_SECRET_KEY": "hush"}, "LANEMQ_SECRET_KEY is set and LANEMQ_ACCESS_KEY is not"),
        ({"LANEMQ_SECRET_KEY": "hush", "LANEMQ_SECRET_KEY_FILE": "f"}, "unset one of them"),
        ({"LANEMQ_SECRET_KEY_FILE": "missing"}, "missing: cannot be read"),
        ({"LANEMQ_TLS": "perhaps"}, "write on or off"),
        ({"LANEMQ_TLS_VERIFY": "some"}, "write full, ca or none"),
        ({"LANEMQ_TLS_CA": "missing.pem"}, "tls ca missing.pem: cannot be read"),
    ],
)
def test_an_incomplete_environment_is_refused(names: dict[str, str], error: str) -> None:
    with pytest.raises(InvalidOption, match=error) as refused:
        security_of(environment=names)
    assert "hush" not in str(refused.value)


def test_tls_may_be_switched_off_in_the_environment() -> None:
    assert security_of(environment={"LANEMQ_TLS": "off", "LANEMQ_TLS_CA": "missing.pem"}).tls is None


def test_credentials_of_the_wrong_type_are_refused_without_being_shown() -> None:
    with pytest.raises(InvalidOption, match="credentials must be Credentials") as refused:
        Producer("localhost:1", credentials=("user", "hush"))  # type: ignore[arg-type]
    assert "hush" not in str(refused.value)


def test_the_environment_may_protect_two_sides_differently() -> None:
    names = {"LANEMQ_FROM_TLS": "on", "LANEMQ_TO_ACCESS_KEY": "mirror", "LANEMQ_TO_SECRET_KEY": "secret"}
    source, target = security_of_side("FROM", names), security_of_side("TO", names)
    assert source is not None
    assert target is not None
    assert source["tls"] is not None
    assert source["credentials"] is None
    assert target["tls"] is None
    assert target["credentials"] == Credentials("mirror", "secret")
    assert security_of_side("TO", {"LANEMQ_FROM_TLS": "on"}) is None


def test_variables_of_a_side_and_of_both_sides_are_not_mixed() -> None:
    """A client takes from the environment what it is not given: the target would get the source's authority."""
    with pytest.raises(InvalidOption, match="LANEMQ_TLS_CA is set for both sides and LANEMQ_TO_ACCESS_KEY for one"):
        security_of_side("TO", {"LANEMQ_TLS_CA": "ca.pem", "LANEMQ_TO_ACCESS_KEY": "mirror"})
