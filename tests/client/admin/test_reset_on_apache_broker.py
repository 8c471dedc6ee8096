"""Resetting a group on an Apache broker: to an offset or, with members and before RocketMQ 5.2, by time."""

from collections.abc import Iterator

import pytest
from tests.client.fake_broker import FakeBroker

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.group_offsets import Position
from lanemq.client.admin.views import AtOffset, AtTime
from lanemq.model.errors import UsageError
from lanemq.model.units import QueueOffset
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.stats_bodies import ClientConnection, ConsumerConnection

ONLINE = ConsumerConnection(
    connection_set=[ClientConnection(client_id="member", client_addr="", language="JAVA", version=473)]
)
NEW = b"brokerName=broker-a\nuseServerSideResetOffset=true\n"
Asked = list[tuple[int, dict[str, str]]]


@pytest.fixture
def stock() -> Iterator[FakeBroker]:
    with FakeBroker(lane=False) as broker:
        broker.create("T", queues=2)
        for code, offset in (
            (RequestCode.QUERY_CONSUMER_OFFSET, 5),
            (RequestCode.GET_MIN_OFFSET, 0),
            (RequestCode.GET_MAX_OFFSET, 9),
            (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, 3),
        ):
            broker.answers[code] = lambda _, offset=offset: (0, {"offset": str(offset)}, b"")  # type: ignore[misc]
        yield broker


def _orders(stock: FakeBroker, *, online: bool) -> Asked:
    """Collects the requests by which the broker is asked to change offsets."""
    asked: Asked = []

    def note(command: Command) -> tuple[int, dict[str, str], bytes]:
        asked.append((command.code, dict(command.ext)))
        return 0, {}, b""

    members = ONLINE if online else ConsumerConnection()
    stock.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = lambda _: (0, {}, members.encode())
    stock.answers[RequestCode.INVOKE_BROKER_TO_RESET_OFFSET] = note
    stock.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = note
    return asked


@pytest.mark.parametrize(("to", "timestamp"), [(AtTime(0.077), "77"), ("last", "-1"), ("first", "0")])
def test_a_group_with_members_is_moved_by_time_for_all_queues_at_once(
    stock: FakeBroker, to: Position, timestamp: str
) -> None:
    """RocketMQ 4 ignores queue and offset in the request; a time of -1 would move the group to the end."""
    asked = _orders(stock, online=True)
    with Admin(str(stock.address)) as admin:
        admin.reset_offsets("g", "T", to=to)
    [(code, ext)] = asked
    assert (code, ext["timestamp"]) == (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, timestamp)
    assert not {"offset", "queueId"} & ext.keys()


def test_a_group_with_members_is_not_moved_to_an_offset(stock: FakeBroker) -> None:
    asked = _orders(stock, online=True)
    with Admin(str(stock.address)) as admin, pytest.raises(UsageError, match="stop its members first"):
        admin.reset_offsets("g", "T", to=AtOffset(QueueOffset(1)))
    assert asked == []


def test_a_group_with_members_is_not_moved_in_one_queue_alone(stock: FakeBroker) -> None:
    """RocketMQ 4 would move all of them."""
    asked = _orders(stock, online=True)
    with Admin(str(stock.address)) as admin, pytest.raises(UsageError, match="single queues only while it is not"):
        admin.reset_offsets("g", "T", to="last", queues=[0])
    assert asked == []


@pytest.mark.parametrize("to", ["last", AtOffset(QueueOffset(1)), AtTime(0.077)])
def test_a_broker_that_reads_offsets_moves_a_group_with_members_to_them(stock: FakeBroker, to: Position) -> None:
    """RocketMQ 5.2 and newer. What is moved is what the plan of the reset says."""
    asked = _orders(stock, online=True)
    stock.answers[RequestCode.GET_BROKER_CONFIG] = lambda _: (0, {}, NEW)
    with Admin(str(stock.address)) as admin:
        (change,) = admin.reset_offsets("g", "T", to=to, queues=[1])
    assert [(code, ext["queueId"], ext["offset"]) for code, ext in asked] == [
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, "1", str(change.after))
    ]


@pytest.mark.parametrize(("config", "resets"), [(NEW, 1), (b"useServerSideResetOffset=false\n", 0)])
def test_an_offset_that_the_broker_did_not_take_over_is_set_by_a_reset(
    stock: FakeBroker, config: bytes, resets: int
) -> None:
    """It answers a commit with success and ignores it while an earlier reset waits for the group's next pull."""
    asked = _orders(stock, online=False)
    stock.answers[RequestCode.GET_BROKER_CONFIG] = lambda _: (0, {}, config)
    with Admin(str(stock.address)) as admin:
        admin.reset_offsets("g", "T", to="last", queues=[1])
    codes = [code for code, _ in asked]
    assert codes.count(RequestCode.UPDATE_CONSUMER_OFFSET) == 1
    assert codes.count(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET) == resets


def test_a_group_without_members_is_moved_in_one_queue_alone(stock: FakeBroker) -> None:
    asked = _orders(stock, online=False)
    with Admin(str(stock.address)) as admin:
        admin.reset_offsets("g", "T", to="last", queues=[1])
    assert [(ext["queueId"], ext["commitOffset"]) for _, ext in asked] == [("1", "9")]


def test_a_group_without_members_is_moved_queue_by_queue(stock: FakeBroker) -> None:
    asked = _orders(stock, online=False)
    with Admin(str(stock.address)) as admin:
        admin.reset_offsets("g", "T", to=AtOffset(QueueOffset(1)))
    assert [(code, ext["queueId"], ext["commitOffset"]) for code, ext in asked] == [
        (RequestCode.UPDATE_CONSUMER_OFFSET, "0", "1"),
        (RequestCode.UPDATE_CONSUMER_OFFSET, "1", "1"),
    ]
