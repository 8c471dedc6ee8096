"""Every screen of the console against a real Apache RocketMQ: what it offers is shown, and what it does not is said.

The broker knows offsets, members, delayed and dead messages. Its members tell which queues they have locked and which
keys they hold. It has no leases, no epochs, no index of keys, and parks nothing.
"""

import contextlib
import html
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import httpx2 as httpx
import pytest
from click.testing import CliRunner
from tests.console.conftest import TOKEN
from tests.console.window import serving

from interop.clients import Listening, Rule
from interop.java_client import java_client
from interop.maven import UnavailableError
from interop.ports import eventually
from lanemq import Admin, App, Message, Producer
from lanemq.cli.main import main
from lanemq.client.admin import key_progress
from lanemq.client.admin.topic_reader import TopicReader
from lanemq.console.settings import ConsoleSettings
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import DeadLetter, HoldKey
from lanemq.model.names import dead_letter_topic
from lanemq.net.calling.blocking import BlockingConnection
from lanemq.wire.bodies import ConsumerData, HeartbeatData
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.headers import SendBackHeader

PATIENCE = 90.0
SHORT = Backoff(first=0.05, factor=1.0, max=0.05)
LONG = Backoff(first=3600.0, factor=1.0, max=3600.0)
NO_LEASES = "owners are as the members report them, and there are no leases, epochs or keys parked at a broker"


@dataclass
class Shop:
    """What the broker has: `orders` with a parked key, `returns` with a held key and a dead letter, and `mails`."""

    address: str
    broker: str
    ids: dict[str, str] = field(default_factory=dict)
    """Message ids by body."""
    read: Counter[str] = field(default_factory=Counter)
    """Messages that the group `readers` has seen, by key."""


@pytest.fixture(scope="module")
def shop(address: str) -> Iterator[Shop]:
    with Admin(address) as admin:
        if len(admin.figures()) > 1:
            pytest.skip("for one broker: test_two_brokers has more")
        admin.create_topic("orders", 2, ordered=True)
        admin.create_topic("returns", 1, ordered=True)
        admin.create_topic("mails", 2)
        found = Shop(address, admin.figures()[0].broker)
        with Producer(address) as producer:
            for number, status in enumerate(("created", "paid", "shipped")):
                for order in ("order-1", "order-7"):
                    sent = producer.send("orders", {"order": order, "status": status}, key=order, tag=status)
                    found.ids[f"{order} {number}"] = sent.message_id
            producer.send("returns", {"return": 1}, key="return-1", keys=["invoice-4711"])
            producer.send("returns", {"return": 2}, key="return-2")
            producer.send("mails", "hello", key="mail-1")
        with contextlib.ExitStack() as running:
            for member in (parker(address), holder(address), quitter(address), concurrent(address), reader(found)):
                running.enter_context(member)
            give_up_as_rocketmq_does(address, found.broker)
            eventually(lambda: found.read == {"order-1": 3, "order-7": 3} or None, PATIENCE, "all orders are read")
            yield found


def parker(address: str) -> App:
    """`shipping` fails at a key until it is parked, in its own memory because the broker cannot park."""
    app = App(address, group="shipping", client_id="shipper@1")

    @app.ordered("orders", on_fail=HoldKey(retries=1, backoff=SHORT))
    def ship(message: Message) -> None:
        if message.key == "order-7" and message.tag == "paid":
            raise ValueError("no carrier takes order-7")

    return app


def holder(address: str) -> App:
    """`billing` holds `return-2` for an hour."""
    app = App(address, group="billing", client_id="biller@2")

    @app.ordered("returns", on_fail=HoldKey(retries=-1, backoff=LONG))
    def bill(message: Message) -> None:
        if message.key == "return-2":
            raise ValueError("the payment service does not answer")

    return app


def quitter(address: str) -> App:
    """`mailing` gives up `return-1`."""
    app = App(address, group="mailing", client_id="mailer@3")

    @app.ordered("returns", on_fail=DeadLetter(skip=True, hold=HoldKey(retries=0)))
    def mail(message: Message) -> None:
        if message.key == "return-1":
            raise ValueError("no mail address")

    return app


def concurrent(address: str) -> App:
    """`sending` fails at its message, which the broker then delays for a retry."""
    app = App(address, group="sending", client_id="sender@4")

    @app.concurrent("mails")
    def send(message: Message) -> None:
        raise ValueError("the mail server is away")

    return app


def reader(shop: Shop) -> App:
    """`readers` reads all orders, and is reset by a test."""
    app = App(shop.address, group="readers", client_id="reader@5")

    @app.ordered("orders")
    def read(message: Message) -> None:
        shop.read[str(message.key)] += 1

    return app


def give_up_as_rocketmq_does(address: str, broker: str) -> None:
    """A dead letter of the group `java`, as RocketMQ's own clients make them: without a reason."""
    with TopicReader(address, "returns") as found:
        (queue,) = found.queues
        message = next(found.read(queue, 1, 2))
        header = SendBackHeader(
            offset=message.record.position, group="java", delay_level=-1, origin_msg_id=message.message_id,
            origin_topic="returns", max_reconsume_times=16, broker_name=broker,
        )  # fmt: skip
        with contextlib.closing(BlockingConnection(found.route.master(broker))) as link:
            reply = link.request(Command(RequestCode.CONSUMER_SEND_MSG_BACK, 0, ext=header.to_ext()))
    assert reply.code == 0, reply.remark


def was_online(shop: Shop, group: str) -> None:
    """A member joins a group and leaves. RocketMQ 4 lists no group that has offsets and never had a member."""
    beat = HeartbeatData(client_id="short@1", consumer_data_set=[ConsumerData(group_name=group)])
    with TopicReader(shop.address, "returns") as found:
        address = found.route.master(shop.broker)
    with contextlib.closing(BlockingConnection(address)) as link:
        assert link.request(Command(RequestCode.HEART_BEAT, 0, body=beat.encode())).code == 0


class Visitor:
    """A browser without scripts."""

    def __init__(self, base: str) -> None:
        self.client = httpx.Client(base_url=base, timeout=PATIENCE, headers={"origin": base})
        self.client.post("/sign-in", data={"token": TOKEN, "then": "/health"}, follow_redirects=True).raise_for_status()

    def get(self, path: str, **named: str) -> str:
        answer = self.client.get(f"{path}?{urlencode(named)}" if named else path, follow_redirects=True)
        assert answer.status_code == 200, f"{path} {named}: {answer.status_code}: {text_of(answer.text)}"
        return text_of(answer.text)

    def until(self, path: str, *words: str, **named: str) -> str:
        """The page once it has all words: pages show the newest reading, and members need a moment."""
        seen = ""

        def asked() -> str | None:
            nonlocal seen
            seen = text_of(self.client.get(f"{path}?{urlencode(named)}", follow_redirects=True).text)
            return seen if all(word in seen for word in words) else None

        try:
            return eventually(asked, PATIENCE, f"{path} {named} with {words}")
        except TimeoutError as late:
            late.add_note(seen)
            raise

    def submit(self, path: str, named: Mapping[str, str] | None = None, **more: str) -> httpx.Response:
        """Sends the form of a page with its hidden fields, and what a person adds."""
        address = f"{path}?{urlencode(named)}" if named else path
        fields = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', self.client.get(address).text)
        form: dict[str, list[str]] = {}
        for name, value in fields:
            form.setdefault(name, []).append(html.unescape(value))
        assert "secret" in form, self.client.get(address).text
        return self.client.post(path, data={**form, **more}, follow_redirects=True)

    def first_event(self, path: str, wanted: str) -> str:
        """Reads an event stream up to the first event with a word."""
        with self.client.stream("GET", path) as stream:
            assert stream.status_code == 200
            event: list[str] = []
            for line in stream.iter_lines():
                event.append(line.removeprefix("data: "))
                if not line and wanted in (found := text_of("\n".join(event))):
                    return found
                if not line:
                    event = []
        raise AssertionError(f"{path} ended without {wanted!r}")


def text_of(page: str) -> str:
    """What a person reads: without tags, and with single spaces."""
    page = re.sub(r"<(script|style|svg).*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", page)))


@pytest.fixture(scope="module")
def visitor(shop: Shop) -> Iterator[Visitor]:
    with serving(ConsoleSettings(shop.address, every=0.5)) as base:
        found = Visitor(base)
        found.until("/waiting", "order-7", "return-2", "mail-1", "mailing", "java")
        yield found
        found.client.close()


SCREENS = {
    "home": "/", "topics": "/topics", "topic": "/topics/orders", "new topic": "/topic/new",
    "delete": "/topics/orders/delete", "messages": "/messages", "messages of a topic": "/messages?topic=orders",
    "message": "/message?topic=returns&broker={broker}&queue=0&offset=0", "key": "/key",
    "journey": "/key?topic=orders&key=order-7", "groups": "/groups", "group": "/groups/shipping",
    "concurrent group": "/groups/sending",
    "reset": "/groups/readers/reset", "preview of a reset": "/groups/readers/reset?topic=orders&to=first&queue=",
    "waiting": "/waiting", "dead letters": "/dead", "dead letters of a group": "/dead?group=java",
    "dead letter": "/dead/letter?group=java&id={broker}/0/0", "redrive": "/dead/redrive?group=java",
    "discard": "/dead/discard?group=java", "pipelines": "/pipelines", "order check": "/check", "settings": "/settings",
    "health": "/health",
}  # fmt: skip


@pytest.mark.parametrize("name", SCREENS)
def test_every_screen_opens_and_knows_what_the_broker_offers(visitor: Visitor, shop: Shop, name: str) -> None:
    page = visitor.get(SCREENS[name].format(broker=shop.broker))
    if name != "settings":
        assert "nknown" not in page
        assert "did not work" not in page
        assert "reads this topic" not in page, "a group reads every topic here"


def test_home_says_what_is_stuck_and_what_failed(visitor: Visitor) -> None:
    visitor.until(
        "/",
        "Is it up? Up 1 broker, 3 topics",
        "Is anything stuck? 1 key 2 messages parked in members' memory until you resume them there",
        "What failed? 3 keys 2 held for a retry, 1 parked, 2 given up",
    )


def test_topics_and_groups_of_the_broker_itself_are_not_listed(visitor: Visitor) -> None:
    topics = visitor.get("/topics")
    for word in ("RMQ_SYS", "SCHEDULE_TOPIC", "SELF_TEST", "BenchmarkTest", "rmq_sys_", "REPLY_TOPIC", "OFFSET_MOVED"):
        assert word not in topics
    groups = visitor.get("/groups")
    for word in ("CID_", "TOOLS_CONSUMER", "SELF_TEST", "FILTERSRV", "lanemq-cli"):
        assert word not in groups


def test_a_topic_has_its_queues_order_owners_and_how_long_it_is_kept(visitor: Visitor) -> None:
    owners = ("shipper@1 for shipping", "reader@5 for readers")
    visitor.until("/topics/orders", "Order by key", "Messages kept 6", "Kept for 3 days", *owners)


def test_a_group_has_members_lag_and_owners_and_says_that_there_are_no_leases(visitor: Visitor, shop: Shop) -> None:
    page = visitor.until("/groups/billing", "Behind 1", "Held keys 1 Parked keys 0", "biller@2")
    assert f"{shop.broker} is not a LaneMQ broker: {NO_LEASES}" in page
    assert "the payment service does not answer" in page
    assert "no owner" not in page
    assert "no owner" in visitor.get("/groups/sending"), "a concurrent group locks nothing"


def test_a_key_that_is_parked_in_a_member_is_listed_with_its_member_and_its_error(visitor: Visitor) -> None:
    page = visitor.get("/waiting")
    assert "parked keys wait in the memory of their members, and are let go there with App.resume" in page
    assert "in the memory of shipper@1" in page
    assert "no carrier takes order-7" in page
    journey = visitor.until("/key", "readers done", topic="orders", key="order-7")
    assert "3 messages" in journey
    assert "parked in its owner's memory at offset" in journey
    assert "Owner shipper@1 Lease left – Epoch –" in journey


def test_the_command_line_knows_a_key_that_is_parked_in_a_member(
    visitor: Visitor, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the search does not reach the messages of the key."""
    monkeypatch.setattr(key_progress, "MAX_SEARCHED", 1)

    def run(*words: str) -> str:
        return CliRunner().invoke(main, [*words, "--group", "shipping", "--server", shop.address]).output

    assert "parked in its owner's memory" in run("why", "order-7", "--topic", "orders")
    assert "in member shipper@1" in run("parked", "list")
    assert "order-7 of group shipping is parked in the memory of shipper@1" in run("parked", "redrive", "order-7")


def test_a_held_key_says_what_it_waits_for(visitor: Visitor, shop: Shop) -> None:
    journey = visitor.get("/key", topic="returns", key="return-2")
    assert "billing held Waits for its next attempt, in " in journey
    assert "the payment service does not answer" in journey
    place = visitor.get("/message", topic="returns", broker=shop.broker, queue="0", offset="1")
    assert "billing held" in place


def test_a_message_that_a_concurrent_group_gets_again_is_in_retry(visitor: Visitor) -> None:
    visitor.until("/waiting", "mail-1 in retry")
    visitor.until("/key", "sending in retry", topic="mails", key="mail-1")


def test_a_key_without_its_topic_leads_to_a_choice_of_topics(visitor: Visitor) -> None:
    page = visitor.get("/key", key="order-7")
    assert "does not index the keys of messages. Choose the topic of order-7 : mails orders returns" in page


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("", 6), ("key:order-7", 3), ("key:order-7 paid", 1), ("key:missing", 0), ("after:10m", 6), ("before:10m", 0),
        ("shipped", 2),
    ],
)  # fmt: skip
def test_messages_are_found_by_key_time_and_words(visitor: Visitor, query: str, count: int) -> None:
    found = f"{count} message{'s' if count != 1 else ''}"
    assert f" {found}; read " in visitor.get("/messages", topic="orders", q=query)


def test_messages_are_found_by_id_and_by_search_key_in_the_index(visitor: Visitor, shop: Shop) -> None:
    assert "order-7" in visitor.until("/messages", "1 message.", topic="orders", q=f"id:{shop.ids['order-7 1']}")
    assert "return-1" in visitor.until("/messages", "1 message.", topic="returns", q="key:invoice-4711")


def test_the_live_tail_and_a_live_page_show_what_arrives(visitor: Visitor, shop: Shop) -> None:
    with Admin(shop.address) as admin:
        admin.create_topic("tailed", 1)
    visitor.until("/topics", "tailed")
    stop = threading.Event()

    def send() -> None:
        with Producer(shop.address) as producer:
            while not stop.wait(0.3):
                producer.send("tailed", "arrived just now")

    sending = threading.Thread(target=send)
    sending.start()
    try:
        assert "arrived just now" in visitor.first_event("/tail?topic=tailed", "arrived")
        assert "Messages kept" in visitor.first_event("/live/topics/tailed", "Messages kept")
    finally:
        stop.set()
        sending.join()
    with Admin(shop.address) as admin:
        admin.delete_topic("tailed")
    eventually(lambda: "tailed" not in visitor.get("/topics") or None, PATIENCE, "the topic is gone")


def test_a_topic_is_created_and_deleted_after_its_preview(visitor: Visitor, shop: Shop) -> None:
    asked = {"name": "made-here", "queues": "3", "order": "key"}
    preview = visitor.get("/topic/new", **asked)
    assert "Topic made-here will be created with 3 queues on 1 broker, order: by key" in preview
    assert "3 days" in preview, "how long messages are kept"
    assert "Topic made-here was created." in text_of(visitor.submit("/topic/new", asked).text)
    assert "Order by key" in visitor.until("/topics/made-here", "Queues 3")
    with Producer(shop.address) as producer:
        producer.send("made-here", 1, key="k")
    gone = visitor.submit("/topics/made-here/delete", name="made-here")
    assert "Topic made-here and its messages were deleted." in text_of(gone.text)
    assert visitor.client.get("/topics/made-here").status_code == 404
    assert "Is it up? Up" in visitor.get("/")


def test_an_online_group_is_reset_as_a_whole_and_in_one_queue(visitor: Visitor, shop: Shop) -> None:
    """RocketMQ 4 moves single queues of offline groups only, and the page says so."""
    asked = {"topic": "orders", "to": "first", "queue": ""}
    path = "/groups/readers/reset"
    preview = visitor.until(path, "6 messages will be processed again, 0 messages will be skipped", **asked)
    assert "1 member online" in preview
    done = visitor.submit(path, asked)
    assert "Group readers was reset: 6 messages are repeated" in text_of(done.text)
    eventually(lambda: shop.read == {"order-1": 6, "order-7": 6} or None, PATIENCE, "all orders are read again")
    with Admin(shop.address) as admin:
        queue = next(each for each in admin.describe_topic("orders").queues if each.messages)
        where = {**asked, "to": "1", "queue": str(queue.queue.queue_id)}
        again = queue.messages - 1
        visitor.until(path, f"{again} messages will be processed again, 0 messages will be skipped", **where)
        done = visitor.submit(path, where)
        if admin.figures()[0].table["brokerVersionDesc"].startswith("V4"):
            assert "this broker moves single queues only while it is not: stop its members first" in text_of(done.text)
            return
        assert f"Group readers was reset: {again} messages are repeated" in text_of(done.text)
    eventually(lambda: shop.read.total() == 12 + again or None, PATIENCE, "one queue is read again from its second")


def test_an_offline_group_is_reset_to_an_offset(visitor: Visitor, shop: Shop) -> None:
    with Admin(shop.address) as admin:
        (queue, *_) = (each.queue for each in admin.describe_topic("returns").queues)
        was_online(shop, "offline")
        admin.commit("offline", queue, 2)
        asked = {"topic": "returns", "to": "1", "queue": "0"}
        visitor.until("/groups/offline/reset", "1 message will be processed again", **asked)
        done = visitor.submit("/groups/offline/reset", asked)
        assert "Group offline was reset: 1 messages are repeated" in text_of(done.text)
        assert admin.committed("offline", queue) == 1


def test_dead_letters_are_listed_redriven_once_and_discarded(visitor: Visitor, shop: Shop) -> None:
    listed = visitor.get("/dead", group="mailing")
    assert "return-1 open returns" in listed
    assert "no mail address" in listed
    assert "return-2 open returns" in visitor.get("/dead", group="java")
    assert "no reason given" in visitor.get("/dead/letter", group="java", id=f"{shop.broker}/0/0")
    journey = visitor.get("/key", topic="returns", key="return-1")
    assert "mailing dead letter" in journey
    assert "no mail address" in journey
    preview = visitor.get("/dead/redrive", group="java")
    assert "billing" in preview, "the groups that get the copy are named"
    done = text_of(visitor.submit("/dead/redrive", {"group": "java"}).text)
    assert "1 dead letter sent to returns again, in order." in done
    visitor.until("/dead", "return-2 redriven", group="java")
    with Admin(shop.address) as admin:
        assert admin.describe_topic("returns").queues[0].end == 3
        again = text_of(visitor.submit("/dead/redrive", {"group": "mailing"}).text)
        assert "1 dead letter sent to returns again" in again
        discarded = text_of(visitor.submit("/dead/discard", {"group": "java"}).text)
        assert "1 dead letter of group java discarded." in discarded
        assert "This group has no dead letters" in visitor.get("/dead", group="java")
        assert admin.describe_topic(dead_letter_topic("java")).queues[0].messages == 1, "they stay in the log"
    assert "java" not in visitor.get("/waiting")


def test_settings_name_the_broker_its_version_and_its_options(visitor: Visitor, shop: Shop) -> None:
    page = visitor.get("/settings")
    assert re.search(rf"{shop.broker} 127\.0\.0\.1:\d+ V\d_\d", page), page
    assert "fileReservedTime 72" in page
    assert "not reported" in page


def test_a_member_with_rocketmqs_own_client_is_an_owner_that_reports_nothing_about_keys(
    visitor: Visitor, shop: Shop, tmp_path: Path
) -> None:
    try:
        client = java_client("java5", "5", shop.address, tmp_path)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    with contextlib.closing(client):
        stuck = Listening(rules=[Rule("paid", hold=True)])
        member = client.member("java-orders", "orders", stuck, own_process=False)
        page = visitor.until("/groups/java-orders", f"{member.id} – –", "java 2")
        assert "no owner" not in page
        visitor.until("/key", "does not report on single keys", topic="orders", key="order-7")
        member.release()
        member.stop()
