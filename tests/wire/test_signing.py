"""Signatures as RocketMQ's access control computes them."""

import pytest

from lanemq.model.errors import InvalidOption
from lanemq.wire.command import Command, FrameDecoder, decode_command, encode_command
from lanemq.wire.signing import Credentials, is_signed, sign, signature

USER = Credentials("rocketmq2", "12345678")


def over_the_wire(command: Command) -> Command:
    (frame,) = FrameDecoder().feed(encode_command(command))
    return decode_command(frame)


def test_the_signature_of_a_known_request() -> None:
    """From the rule, outside this program: printf 'rocketmq2topicAbody' | openssl dgst -sha1 -hmac 12345678
    -binary | base64. Sorted by name, AccessKey comes before topic; the body follows."""
    fields = {"topic": "topicA", "AccessKey": "rocketmq2"}
    assert signature(fields, b"body", "12345678") == "8aLxBlbZ2jtZt1nvKtwK5eeHFIw="


def test_fields_are_taken_in_the_order_of_their_names_whatever_order_they_came_in() -> None:
    assert signature({"b": "2", "a": "1"}, b"", "secret") == signature({"a": "1", "b": "2"}, b"", "secret")
    assert signature({"a": "2", "b": "1"}, b"", "secret") != signature({"a": "1", "b": "2"}, b"", "secret")


def test_a_signed_request_is_recognised_on_the_other_side() -> None:
    command = Command(310, 1, ext={"b": "größe", "i": "KEYS\x01a\x02"}, body=b"\x00\xff")
    sign(command, USER)
    assert is_signed(over_the_wire(command), USER.secret_key)


@pytest.mark.parametrize("change", ["field", "body", "added field", "user", "no signature", "secret"])
def test_whatever_is_changed_on_the_way_the_signature_does_not_fit(change: str) -> None:
    command = Command(310, 1, ext={"b": "orders"}, body=b"body")
    sign(command, USER)
    secret = USER.secret_key
    match change:
        case "field":
            command.ext["b"] = "others"
        case "body":
            command.body = b"Body"
        case "added field":
            command.ext["z"] = "1"
        case "user":
            command.ext["AccessKey"] = "somebody"
        case "no signature":
            del command.ext["Signature"]
        case "secret":
            secret = "87654321"
    assert not is_signed(command, secret)


def test_a_request_that_is_sent_again_is_signed_anew() -> None:
    command = Command(310, 1, ext={"b": "orders"}, body=b"body")
    sign(command, USER)
    first = dict(command.ext)
    sign(command, USER)
    assert command.ext == first
    command.ext["e"] = "7"
    sign(command, USER)
    assert is_signed(command, USER.secret_key)


def test_fields_that_requests_share_stay_as_they_were() -> None:
    shared = {"b": "orders"}
    sign(Command(310, 1, ext=shared), USER)
    assert shared == {"b": "orders"}


def test_a_security_token_is_sent_and_signed() -> None:
    command = Command(310, 1, ext={"b": "orders"})
    sign(command, Credentials("user", "secret", "token"))
    assert command.ext["SecurityToken"] == "token"
    command.ext["SecurityToken"] = "other"
    assert not is_signed(command, "secret")


def test_the_secret_is_in_no_text() -> None:
    assert "12345678" not in repr(USER)
    assert "token-1" not in repr(Credentials("user", "secret", "token-1"))


@pytest.mark.parametrize(("access", "secret"), [("", "secret"), ("user", " "), ("user", None)])
def test_half_of_the_credentials_is_refused(access: str, secret: str) -> None:
    with pytest.raises(InvalidOption, match="is empty"):
        Credentials(access, secret)
