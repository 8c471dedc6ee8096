"""Message ids as RocketMQ's tools read them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.model.errors import UsageError
from lanemq.wire.record import OffsetId, decode_offset_id, encode_offset_id


def test_offset_id_is_host_port_position_in_upper_case_hex() -> None:
    assert encode_offset_id("10.0.0.255", 10911, 0xABCDEF) == "0A0000FF00002A9F0000000000ABCDEF"


@settings(max_examples=60)
@given(st.ip_addresses(v=4), st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_offset_id_comes_back(ip: object, port: int, position: int) -> None:
    assert decode_offset_id(encode_offset_id(str(ip), port, position)) == OffsetId(str(ip), port, position)


def test_long_offset_id_of_an_ipv6_broker_is_read() -> None:
    text = "00" * 15 + "01" + "00002A9F" + "0000000000000005"
    assert decode_offset_id(text) == OffsetId("::1", 10911, 5)


@pytest.mark.parametrize(
    "text", ["", "x", "0" * 31, "G" * 32, "0 " * 16, "00 " * 10 + "00", "0" * 40, "é" * 32, "0" * 33]
)
def test_text_that_is_not_an_offset_id_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="not an offset message id"):
        decode_offset_id(text)
