"""The key-to-queue function, against vectors of Java's hash and the rules of RocketMQ's selectors."""

import itertools
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.sending.sharding import by_hash, by_int_modulo, pick_queue, round_robin
from lanemq.model.errors import InvalidOption
from lanemq.model.java_hash import INT_MIN, LONG_MAX, LONG_MIN, java_int_hash, java_string_hash
from lanemq.model.queue import MessageQueue

# Produced by java.lang.String.hashCode.
STRING_VECTORS = {
    "": 0,
    "TagA": 2598919,
    "TagB": 2598920,
    "order-1": -1207111310,
    "你好": 652829,
    "polygenelubricants": INT_MIN,
}


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("orders", "broker-a", number) for number in range(count)]


def java_remainder(dividend: int, divisor: int) -> int:
    """Java's `%`, written out: it truncates toward zero. Independent of the code under test."""
    return int(math.copysign(abs(dividend) % divisor, dividend))


@pytest.mark.row("A15")
@pytest.mark.parametrize(("text", "expected"), STRING_VECTORS.items())
def test_string_hash_equals_java(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


@given(st.text())
def test_string_hash_follows_the_utf16_definition(text: str) -> None:
    raw = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2)]
    total = sum(unit * 31 ** (len(units) - 1 - i) for i, unit in enumerate(units))
    assert java_string_hash(text) == (total + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5, 5), (-5, -5), (INT_MIN, INT_MIN), (4294967301, 4), (LONG_MIN, INT_MIN), (LONG_MAX, INT_MIN)],
)
def test_integer_hash_equals_java(value: int, expected: int) -> None:
    assert java_int_hash(value) == expected


def test_integer_beyond_a_long_is_refused() -> None:
    with pytest.raises(InvalidOption, match="64-bit"):
        java_int_hash(2**63)


@pytest.mark.row("A15")
def test_a_negative_hash_picks_the_same_queue_as_java() -> None:
    """Python's and Java's `%` differ on negative numbers."""
    assert pick_queue("order-1", queues(4)).queue_id == 2
    assert pick_queue("order-1", queues(7)).queue_id == abs(java_remainder(-1207111310, 7))
    assert pick_queue("polygenelubricants", queues(7)).queue_id == abs(java_remainder(INT_MIN, 7))


@pytest.mark.row("A15")
@given(st.one_of(st.integers(LONG_MIN, LONG_MAX), st.just(INT_MIN), st.text()), st.integers(1, 64))
def test_the_index_is_the_absolute_value_of_javas_remainder(key: str | int, count: int) -> None:
    hashed = java_string_hash(key) if isinstance(key, str) else java_int_hash(key)
    assert by_hash(queues(count), None, key).queue_id == abs(java_remainder(hashed, count))


@pytest.mark.row("A15")
def test_two_processes_agree_on_every_key() -> None:
    """Python's own hash() differs in every process; a salted one would split keys over queues."""
    program = (
        "from lanemq.core.sending.sharding import pick_queue\n"
        "from lanemq.model.queue import MessageQueue\n"
        "qs = [MessageQueue('orders', 'broker-a', n) for n in range(16)]\n"
        "print([pick_queue(f'key-{n}', qs).queue_id for n in range(50)])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str([pick_queue(f"key-{n}", queues(16)).queue_id for n in range(50)])


@pytest.mark.row("A14")
@pytest.mark.parametrize(("number", "expected"), [(0, 0), (7, 3), (8, 0), (-1, 1), (-3, 3), (-4, 0), (2**70, 0)])
def test_by_int_modulo_uses_the_remainder_without_hashing(number: int, expected: int) -> None:
    assert by_int_modulo(queues(4), None, number).queue_id == expected


@pytest.mark.row("A13")
def test_selectors_get_the_argument_of_the_send_call() -> None:
    turn = round_robin(itertools.count())
    picked = [turn(queues(3), "message", None).queue_id for _ in range(5)]
    assert picked == [0, 1, 2, 0, 1]
    assert by_hash(queues(4), "message", "order-1") == pick_queue("order-1", queues(4))


@pytest.mark.parametrize("bad", [None, 1.5, b"key"])
def test_by_hash_refuses_an_argument_of_another_type(bad: object) -> None:
    with pytest.raises(InvalidOption, match="by_hash needs text or an integer"):
        by_hash(queues(4), None, bad)


def test_selectors_refuse_a_bool() -> None:
    """Java's Boolean hashes to 1231 or 1237, Python's True to 1."""
    with pytest.raises(InvalidOption, match="integer"):
        by_hash(queues(4), None, True)
    with pytest.raises(InvalidOption, match="integer"):
        by_int_modulo(queues(4), None, True)


def test_topic_without_queues_is_refused() -> None:
    with pytest.raises(InvalidOption, match="no queue"):
        pick_queue("order-1", [])
