"""A broker with users, as honest and dishonest clients see it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient
from tests.broker.running import ManualClock, RunningBroker

from lanemq.broker.access.guard import MAX_UNHANDLED, Guard
from lanemq.broker.access.permissions import _NEEDS, _OPEN, Need, needs
from lanemq.broker.access.users import Right, User, read_users
from lanemq.broker.body_limits import SMALL_BODY
from lanemq.broker.handlers.send import SendHandler
from lanemq.core.brokering.dedup import ProducerTable
from lanemq.core.brokering.refusal_pace import INTERVAL_MS, MAX_REFUSALS
from lanemq.model.errors import InvalidOption
from lanemq.net.address import parse_address
from lanemq.net.calling.blocking import BlockingConnection, connect
from lanemq.net.security import OPEN, Security
from lanemq.net.serving.peer import Peer
from lanemq.wire.bodies import ConsumerData, HeartbeatData, LockRequest, SubscriptionData
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command, encode_command
from lanemq.wire.headers import PullHeader, SendBackHeader, SendHeader
from lanemq.wire.lane_bodies import LaneBody
from lanemq.wire.properties import LANE_STAMP, encode_properties
from lanemq.wire.record import PULL_SUBSCRIPTION, RecordView
from lanemq.wire.signing import Credentials, sign

ROOT = Credentials("root", "the root of all")
WRITER = Credentials("writer", "writer's secret")
READER = Credentials("reader", "reader's secret")
USERS = """
[[user]]
access_key = "root"
secret_key = "the root of all"
admin = true

[[user]]
access_key = "writer"
secret_key = "writer's secret"
topics = { orders = "PUB" }
default_group = "DENY"

[[user]]
access_key = "reader"
secret_key = "reader's secret"
topics = { orders = "SUB", others = "DENY" }
groups = { audit = "DENY", mine = "SUB" }
"""

SHORT_SECONDS = 30.0
"""Far more than the requests of a test take, far less than they would take if they waited."""

Ask = Callable[..., Command]


@pytest.fixture
def users(folder: Path) -> Path:
    (folder / "users.toml").write_text(USERS)
    return folder / "users.toml"


@pytest.fixture
def guarded(start: Start, users: Path) -> RunningBroker:
    return start(users=users, clock=ManualClock())


@pytest.fixture
def ask(guarded: RunningBroker) -> Iterator[Ask]:
    """Send one request as a user; None: without a signature."""
    links: list[BlockingConnection] = []

    def ask_as(user: Credentials | None, command: Command) -> Command:
        security = OPEN if user is None else Security(credentials=user)
        links.append(BlockingConnection(parse_address(guarded.address), security=security))
        return links[-1].request(command)

    yield ask_as
    for link in links:
        link.close()


def send(topic: str = "orders", code: RequestCode = RequestCode.SEND_MESSAGE_V2) -> Command:
    if code is RequestCode.SEND_MESSAGE:
        long_names = {
            "producerGroup": "g", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
            "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
        }  # fmt: skip
        return Command(code, 0, ext=long_names, body=b"body")
    header = SendHeader(
        producer_group="g", topic=topic, default_topic="TBW102", default_topic_queue_nums=4,
        queue_id=0, sys_flag=0, born_timestamp=1, flag=0,
    )  # fmt: skip
    return Command(code, 0, ext=header.to_ext_v2(), body=b"body")


def stamped(topic: str, stamp: str) -> Command:
    """A send of a producer with this id."""
    command = send(topic)
    command.ext["i"] = encode_properties({LANE_STAMP: stamp})
    return command


def pull(topic: str = "orders", group: str = "g") -> Command:
    header = PullHeader(
        consumer_group=group, topic=topic, queue_id=0, queue_offset=0, max_msg_nums=1, sys_flag=PULL_SUBSCRIPTION,
        subscription="*",
    )  # fmt: skip
    return Command(RequestCode.PULL_MESSAGE, 0, ext=header.to_ext())


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_send_needs_the_right_to_send(ask: Ask, code: RequestCode) -> None:
    assert ask(WRITER, send(code=code)).code == ResponseCode.SUCCESS
    refused = ask(READER, send(code=code))
    assert refused.code == ResponseCode.NO_PERMISSION
    assert refused.remark == "user 'reader' may not send to topic 'orders'"


def test_a_producer_id_belongs_to_the_access_key_that_used_it_first(ask: Ask) -> None:
    """Another user could otherwise take its place, and its own messages would count as repeats."""
    assert ask(WRITER, stamped("orders", "p.0.0")).code == ResponseCode.SUCCESS
    refused = ask(ROOT, stamped("orders", "p.9.0"))
    assert refused.code == ResponseCode.NO_PERMISSION
    assert refused.remark == "producer id 'p' belongs to another user"
    assert ask(WRITER, stamped("orders", "p.0.1")).code == ResponseCode.SUCCESS
    assert ask(ROOT, stamped("orders", "q.0.0")).code == ResponseCode.SUCCESS


def test_a_producer_id_belongs_to_its_access_key_after_a_restart(guarded: RunningBroker, ask: Ask) -> None:
    assert ask(WRITER, stamped("orders", "p.0.0")).code == ResponseCode.SUCCESS
    guarded.restart()
    assert ask(ROOT, stamped("orders", "p.9.0")).remark == "producer id 'p' belongs to another user"
    assert ask(WRITER, stamped("orders", "p.0.1")).code == ResponseCode.SUCCESS


def test_control_users_that_are_not_saved_leave_a_producer_id_to_anyone_after_a_restart(
    guarded: RunningBroker, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProducerTable, "users", lambda _: {})
    assert ask(WRITER, stamped("orders", "p.0.0")).code == ResponseCode.SUCCESS
    guarded.restart()
    assert ask(ROOT, stamped("orders", "p.9.0")).code == ResponseCode.SUCCESS


def test_without_that_check_another_user_fences_the_producer(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test before."""
    monkeypatch.setattr(SendHandler, "_refuse_foreign_producer", lambda *_: None)
    assert ask(WRITER, stamped("orders", "p.0.0")).code == ResponseCode.SUCCESS
    assert ask(ROOT, stamped("orders", "p.9.0")).code == ResponseCode.SUCCESS
    assert ask(WRITER, stamped("orders", "p.0.1")).code != ResponseCode.SUCCESS


def wrongly_signed(guarded: RunningBroker, raw: RawClient, codes: list[int]) -> tuple[int, list[object]]:
    """How many requests were sent with every kind of missing or wrong signature, and those that passed."""
    assert guarded.clock is not None
    stranger, wrong = Credentials("stranger", "no secret"), Credentials("root", "not the secret")
    fields = {"topic": "orders", "queueId": "0", "consumerGroup": "g", "group": "g", "clientId": "c", "offset": "0"}
    bodies = (b"", b"{}", b'{"clientID":"c","clientId":"c","consumerGroup":"g","mqSet":[]}')
    passed: list[object] = []
    asked = 0
    for code in codes:
        guarded.clock.passed += 1_000  # the address has its whole allowance again
        for body in bodies:
            forms = [
                fields,
                {**fields, "AccessKey": "root"},
                signed(fields, body, stranger),
                signed(fields, body, wrong),
                signed(fields, body + b" ", ROOT),
                {**signed(fields, body, ROOT), "topic": "others"},
            ]
            for ext in forms:
                asked += 1
                if (reply := raw.ask(code, ext, body)).code != ResponseCode.NO_PERMISSION:
                    passed.append((code, ext, reply.code))
    return asked, passed


def test_no_request_of_any_code_passes_without_a_right_signature(guarded: RunningBroker) -> None:
    codes, raw = [*map(int, RequestCode), 0, 1, 99_999, 2**31 - 1], guarded.connect()
    asked, passed = wrongly_signed(guarded, raw, codes)
    print(f"{asked} requests of {len(codes)} codes without a right signature: {len(passed)} passed")
    assert passed == []
    listed = raw.ask(RequestCode.GET_ALL_TOPIC_CONFIG, signed({}, b"", ROOT))
    assert listed.code == ResponseCode.SUCCESS


def test_without_the_guard_they_pass(guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test before."""
    monkeypatch.setattr(Guard, "_refusal", lambda *_: None)
    asked, passed = wrongly_signed(guarded, guarded.connect(), [int(RequestCode.GET_ALL_TOPIC_CONFIG)])
    assert len(passed) == asked


def signed(fields: dict[str, str], body: bytes, user: Credentials) -> dict[str, str]:
    command = Command(0, 0, ext=fields, body=body)
    sign(command, user)
    return command.ext


def test_a_request_without_a_signature_is_refused(ask: Ask) -> None:
    for command in (send(), pull(), Command(RequestCode.GET_BROKER_CLUSTER_INFO, 0), Command(99_999, 0)):
        assert ask(None, command).code == ResponseCode.NO_PERMISSION


def test_a_changed_request_is_refused(guarded: RunningBroker) -> None:
    """The signature belongs to another body."""
    command = send()
    sign(command, WRITER)
    command.body = b"changed on the way"
    with BlockingConnection(parse_address(guarded.address)) as link:
        refused = link.request(command)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "the signature is wrong" in (refused.remark or "")


def test_sends_that_arrive_together_are_checked_one_by_one(guarded: RunningBroker) -> None:
    """A broker without users stores them as a run."""
    raw = RawClient(guarded.address)
    frames = b""
    for opaque in range(1, 21):
        command = send()
        command.opaque = opaque
        if opaque > 10:
            sign(command, WRITER)
        frames += encode_command(command)
    raw.socket.sendall(frames)
    codes = [raw.answer(opaque).code for opaque in range(1, 21)]
    raw.close()
    assert codes == [ResponseCode.NO_PERMISSION] * 10 + [ResponseCode.SUCCESS] * 10


@pytest.mark.parametrize("body", [b"", b"x" * (SMALL_BODY + 1)], ids=["small", "with a body that is too large"])
def test_beyond_the_allowance_a_connection_waits_after_each_unsigned_request(
    guarded: RunningBroker, body: bytes
) -> None:
    """The broker's clock stands still, so each wait is an interval longer than the one before."""
    begun, waiting = time.monotonic(), 10
    answer_unsigned(guarded.connect(), MAX_REFUSALS + waiting + 1, body)
    assert time.monotonic() - begun > sum(range(1, waiting + 1)) * INTERVAL_MS / 1000 * 0.9


def test_it_waits_as_well_after_requests_that_cannot_be_checked(
    guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "_refusal", lambda *_: 1 / 0)
    begun, waiting = time.monotonic(), 10
    answer_unsigned(guarded.connect(), MAX_REFUSALS + waiting + 1)
    assert time.monotonic() - begun > sum(range(1, waiting + 1)) * INTERVAL_MS / 1000 * 0.9


def test_without_the_pace_it_does_not_wait(guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test before: 200 requests, which take minutes with the pace."""
    monkeypatch.setattr(Guard, "_slow_down", lambda *_: None)
    begun = time.monotonic()
    answer_unsigned(guarded.connect(), MAX_UNHANDLED)
    assert time.monotonic() - begun < SHORT_SECONDS


def test_signed_requests_of_the_same_address_never_wait(guarded: RunningBroker) -> None:
    """Nor do those of users without the right."""
    answer_unsigned(guarded.connect(), MAX_REFUSALS + 1)
    raw, begun = guarded.connect(), time.monotonic()
    for _ in range(MAX_UNHANDLED):
        allowed = raw.ask(RequestCode.GET_BROKER_CLUSTER_INFO, signed({}, b"", ROOT))
        forbidden = raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, signed({"topic": "orders"}, b"", WRITER))
        assert (allowed.code, forbidden.code) == (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION)
    assert time.monotonic() - begun < SHORT_SECONDS


def test_with_the_pace_for_all_refusals_they_would(guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test before, with a few requests."""
    refusal = Guard._refusal

    def slow(guard: Guard, peer: Peer, request: Command) -> str | None:
        guard._slow_down(peer)
        return refusal(guard, peer, request)

    monkeypatch.setattr(Guard, "_refusal", slow)
    raw, begun, waiting = guarded.connect(), time.monotonic(), 10
    for _ in range(MAX_REFUSALS + waiting + 1):
        raw.ask(RequestCode.GET_BROKER_CLUSTER_INFO, signed({}, b"", ROOT))
    assert time.monotonic() - begun > sum(range(1, waiting + 1)) * INTERVAL_MS / 1000 * 0.9


def test_a_connection_that_sends_too_many_unsigned_requests_ahead_is_closed(guarded: RunningBroker) -> None:
    """They are so many that one read has more than it may, however the socket divides them."""
    raw = guarded.connect()
    frames = [raw.frame(RequestCode.GET_BROKER_CLUSTER_INFO)[1] for _ in range(MAX_REFUSALS + 10 * MAX_UNHANDLED)]

    def send_ahead() -> None:
        raw.socket.sendall(b"".join(frames))
        raw.answer(raw.opaque)

    with pytest.raises((EOFError, ConnectionError)):
        send_ahead()


def answer_unsigned(raw: RawClient, count: int, body: bytes = b"") -> None:
    pending = [raw.post(RequestCode.GET_BROKER_CLUSTER_INFO, body=body) for _ in range(count)]
    refused = ResponseCode.INVALID_PARAMETER if body else ResponseCode.NO_PERMISSION
    assert {raw.answer(opaque).code for opaque in pending} == {refused}


def test_a_oneway_request_without_the_right_does_nothing(guarded: RunningBroker, ask: Ask) -> None:
    with connect(parse_address(guarded.address)) as sock:
        oneway = send()
        oneway.flag |= 2
        sock.sendall(encode_command(oneway))
        signed = pull()
        signed.opaque = 7
        sign(signed, READER)
        sock.sendall(encode_command(signed))
        assert sock.recv(1)  # answered behind it
    assert ask(READER, pull()).code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST)


def test_pulls_need_topic_and_group(ask: Ask) -> None:
    ask(WRITER, send())
    assert ask(READER, pull()).code == ResponseCode.SUCCESS
    assert ask(READER, pull("others")).code == ResponseCode.NO_PERMISSION
    assert ask(READER, pull(group="audit")).code == ResponseCode.NO_PERMISSION
    assert ask(WRITER, pull()).code == ResponseCode.NO_PERMISSION


def test_retry_and_dead_letter_topics_belong_to_their_group(ask: Ask) -> None:
    """No default grants them: they contain messages of topics that the user may have no right to."""
    for prefix in ("%RETRY%", "%DLQ%"):
        assert ask(READER, pull(prefix + "mine")).code != ResponseCode.NO_PERMISSION
        for foreign in ("g", "audit"):
            assert ask(READER, pull(prefix + foreign)).code == ResponseCode.NO_PERMISSION


def test_no_user_reads_what_the_broker_delays_for_others(ask: Ask) -> None:
    assert ask(READER, pull("SCHEDULE_TOPIC_XXXX")).code == ResponseCode.NO_PERMISSION
    assert not User("x", "secret", default_topic=Right.ANY).may_use_topic("SCHEDULE_TOPIC_XXXX", Right.SUB)


def test_a_message_of_another_topic_cannot_be_fetched_by_its_position(ask: Ask) -> None:
    """A message sent back would be delivered to the sender's group."""
    assert ask(ROOT, send("private")).code == ResponseCode.SUCCESS
    place = RecordView(ask(ROOT, pull("private")).body).position
    header = SendBackHeader(offset=place, group="mine", delay_level=0, origin_topic="orders")
    refused = ask(READER, Command(RequestCode.CONSUMER_SEND_MSG_BACK, 0, ext=header.to_ext()))
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "topic 'private'" in (refused.remark or "")
    view = Command(RequestCode.VIEW_MESSAGE_BY_ID, 0, ext={"offset": str(place)})
    assert ask(READER, view).code == ResponseCode.NO_PERMISSION
    assert ask(ROOT, view).code == ResponseCode.SUCCESS


def test_only_a_group_that_is_listed_can_be_joined(ask: Ask) -> None:
    wanted = {("mine", "orders"): 0, ("g", "orders"): 16, ("audit", "orders"): 16, ("mine", "others"): 16}
    for (group, topic), code in wanted.items():
        data = ConsumerData(group_name=group, subscription_data_set=[SubscriptionData(topic=topic)])
        beat = HeartbeatData(client_id="c", consumer_data_set=[data]).encode()
        assert ask(READER, Command(RequestCode.HEART_BEAT, 0, body=beat)).code == code


def test_the_refusal_of_an_unlisted_group_names_the_remedy(ask: Ask) -> None:
    body = LockRequest(client_id="c", consumer_group="g").encode()
    refused = ask(READER, Command(RequestCode.LOCK_BATCH_MQ, 0, body=body))
    assert refused.remark == "user 'reader' may not act for group 'g': list it with SUB among the user's groups"


def test_parked_lanes_of_all_groups_are_for_administrators(ask: Ask) -> None:
    for group, code in (("mine", 0), ("g", 16), ("audit", 16), ("", 16)):
        assert ask(READER, Command(RequestCode.LANE_PARKED, 0, body=LaneBody(group=group).encode())).code == code


def test_an_unlisted_request_needs_an_administrator() -> None:
    assert list(needs(Command(99_999, 0), str)) == [Need("topic", "")]
    assert not Need("topic", "").given_to(User("x", "secret", default_topic=Right.ANY))
    changing = [RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.PUT_KV_CONFIG]
    changing += [RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP]
    assert not (_NEEDS.keys() | _OPEN) & set(changing)


def test_a_body_that_cannot_be_read_is_refused_and_the_connection_lives(guarded: RunningBroker) -> None:
    with BlockingConnection(parse_address(guarded.address), security=Security(credentials=READER)) as link:
        assert link.request(Command(RequestCode.HEART_BEAT, 0, body=b"no json")).code != ResponseCode.SUCCESS
        assert link.request(Command(RequestCode.GET_BROKER_CLUSTER_INFO, 0)).code == ResponseCode.SUCCESS


def test_a_send_without_a_signature_is_refused_behind_signed_ones_of_the_same_connection(
    guarded: RunningBroker,
) -> None:
    """Every request is checked, also one that looks like those before it."""
    with BlockingConnection(parse_address(guarded.address), security=Security(credentials=WRITER)) as link:
        assert [link.request(send()).code for _ in range(4)] == [ResponseCode.SUCCESS] * 4
        link._link._encode = encode_command
        assert link.request(send()).code == ResponseCode.NO_PERMISSION


def test_a_changed_file_counts_without_a_restart(guarded: RunningBroker, ask: Ask, users: Path) -> None:
    assert ask(READER, send()).code == ResponseCode.NO_PERMISSION
    users.write_text(USERS.replace('orders = "SUB"', 'orders = "PUB|SUB"'))
    guarded.advance(5_000)
    assert ask(READER, send()).code == ResponseCode.SUCCESS
    users.write_text("[[user")
    guarded.advance(5_000)
    assert ask(READER, send()).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must consist of"),
        ("[[user", "is not valid TOML"),
        ("x = 1", "must consist of"),
        ("user = [1]", "user 1: is not a table"),
        ("user = [[]]", "user 1: is not a table"),
        ("[[user]]\naccess_key = 'a'", "user 1: secret_key is missing"),
        ("[[user]]\naccess_key = 'a'\nsecret_key = 'hush'", "too short"),
        ("[[user]]\naccess_key = 'a'\nsecret_key = 'hush-hush'\nadmn = true", "admn is none of"),
        ("[[user]]\naccess_key = 'a'\nsecret_key = 'hush-hush'\nadmin = 1", "admin must be true or false"),
        ("[[user]]\naccess_key = 'a'\nsecret_key = 'hush-hush'\ntopics = { x = 'READ' }", "topics.x is 'READ', write"),
        ("[[user]]\naccess_key = 'a'\nsecret_key = 'hush-hush'\ntopics = { x = 'DENY|PUB' }", "write PUB"),
        ("[[user]]\naccess_key = 'a'\nsecret_key = 'hush-hush'\ntopics = 'all'", "must be a table"),
        ("[[user]]\naccess_key = 'a'\nsecret_key = 'hush-hush'\n" * 2, "is there already"),
    ],
)
def test_a_file_with_a_mistake_is_refused_without_naming_its_secrets(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "users").write_text(text)
    with pytest.raises(InvalidOption, match=problem) as refused:
        read_users(tmp_path / "users")
    assert "hush" not in str(refused.value)


def test_a_broker_without_its_users_does_not_start(start: Start, folder: Path) -> None:
    with pytest.raises(InvalidOption, match=r"users file .*missing: cannot be read"):
        start(users=folder / "missing")
