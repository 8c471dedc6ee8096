"""What a client knows about a connection, without a socket."""

import pytest

from lanemq.model.errors import RemoteProtocolError
from lanemq.net.address import Address
from lanemq.net.calling.link import Link
from lanemq.net.security import OPEN
from lanemq.wire.command import Command, FrameDecoder, decode_command, encode_command


@pytest.fixture
def link() -> Link[str]:
    return Link(Address("broker", 9876), OPEN)


def sent(frame: bytes) -> Command:
    (complete,) = FrameDecoder().feed(frame)
    return decode_command(complete)


def test_a_reply_finds_its_caller_once_in_whatever_order_replies_come(link: Link[str]) -> None:
    first, second = (sent(link.request(Command(10, 0), name)) for name in ("first", "second"))
    assert link.waiter_of(second.opaque) == "second"
    assert [link.forget(command.opaque) for command in (second, first, second)] == ["second", "first", None]


def test_a_request_without_a_reply_has_no_caller(link: Link[str]) -> None:
    command = sent(link.oneway(Command(10, 0)))
    assert command.is_oneway
    assert link.waiter_of(command.opaque) is None


def test_frames_are_complete_wherever_the_bytes_are_cut(link: Link[str]) -> None:
    frames = encode_command(Command(1, 7, body=b"one")) + encode_command(Command(2, 8, body=b"two"))
    arrived = [frame for at in range(len(frames)) for frame in link.arrived(frames[at : at + 1])]
    assert [decode_command(frame).body for frame in arrived] == [b"one", b"two"]


def test_everyone_who_waits_for_a_lost_connection_gets_the_error_once(link: Link[str]) -> None:
    for name in ("first", "second"):
        link.request(Command(10, 0), name)
    assert link.forget_all() == ["first", "second"]
    assert link.forget_all() == []


def test_an_error_says_what_ended_the_connection_and_hints_at_a_peer_that_never_sent_anything(link: Link[str]) -> None:
    assert "broker:9876 was lost: reset, and it sent nothing" in str(link.lost(OSError("reset")))
    link.arrived(encode_command(Command(1, 7)))
    assert str(link.lost(OSError("reset"))) == "the connection to broker:9876 was lost: reset"
    assert str(link.lost(None)) == "the connection to broker:9876 was lost"


def test_bytes_that_are_no_frame_are_refused(link: Link[str]) -> None:
    with pytest.raises(RemoteProtocolError):
        link.arrived(b"HTTP/1.1 400 Bad Request\r\n\r\n")
