"""Asking a twin and its reference the same question."""

from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from typing import Any

import pytest
from hypothesis import strategies as st

from lanemq._fast import references, twins

HOMES = (
    "clock",
    "core.sending.sharding",
    "core.consuming.runs",
    "core.consuming.lane_turns",
    "wire.record",
    "wire.command",
    "wire.batch",
    "wire.properties",
    "wire.send_runs",
    "log.queue_index",
    "log.reading",
    "log.key_index",
    "client.message",
    "client.consumer.attempts",
    "client.consumer.turn_run",
    "client.producer.batches",
    "client.producer.replies",
    "client.producer.waiters",
    "client.producer.inbox",
    "client.identity",
)
"""Where the references are."""

for home in HOMES:
    import_module(f"lanemq.{home}")

needs_twins = pytest.mark.skipif(not twins, reason="nothing is compiled here, or LANEMQ_PURE is set")


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call ends with, its error included."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, both must raise it
        return type(error), str(error)


def same(name: str, *arguments: Any) -> Any:
    """What both give; arguments that are changed are copies."""
    compiled, reference = outcome(twins[name], *deepcopy(arguments)), outcome(references[name], *deepcopy(arguments))
    assert compiled == reference
    assert type(compiled) is type(reference)
    return reference


def damaged(whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Bytes that were sound: cut, lengthened, or with some of them changed."""
    changes = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4)
    return st.builds(_damage, whole, changes, st.integers(-9, 9))


def _damage(whole: bytes, changes: list[tuple[int, int]], longer: int) -> bytes:
    data = bytearray(whole)
    for at, byte in changes:
        if at < len(data):
            data[at] = byte
    return bytes(data[:longer] if longer < 0 else data + bytes(longer))
