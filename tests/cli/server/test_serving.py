"""`lanemq broker` leaves what its start made out of garbage collections, and hands over between threads in time."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanemq.broker.app import Broker
from lanemq.broker.config import BrokerOptions
from lanemq.cli.output import LogFormat
from lanemq.cli.server import serving
from lanemq.net.address import Address

ANSWER_TO_A_SMALL_PULL = 0.0003
"""Seconds; 128 KiB of messages, the answer that is given while many clients do not read."""


@pytest.fixture(autouse=True)
def _settings_of_the_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    interval = sys.getswitchinterval()
    monkeypatch.setattr(serving, "keep_freed_memory", lambda: None)
    yield
    sys.setswitchinterval(interval)
    gc.unfreeze()


def frozen_while_it_serves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many objects are left out of collections when the broker says that it serves."""
    counts: list[int] = []

    def say(*_: object, **__: object) -> None:
        counts.append(gc.get_freeze_count())
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(serving, "announce", say)
    gc.unfreeze()
    options = BrokerOptions(folder, listen=Address("127.0.0.1", 0), monitor=None)
    asyncio.run(serving.serve(Broker(options), options, LogFormat.TEXT, str))
    (count,) = counts
    return count


def test_what_the_start_made_is_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert frozen_while_it_serves(tmp_path, monkeypatch) > 10_000


def test_the_log_thread_gets_the_interpreter_sooner_than_one_pull_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 0.5 ms, sends beside pulls of 128 KiB waited up to 94 ms for it: the wait began anew with every pull."""
    frozen_while_it_serves(tmp_path, monkeypatch)
    assert sys.getswitchinterval() == pytest.approx(serving.SWITCH_SECONDS)
    assert serving.SWITCH_SECONDS <= ANSWER_TO_A_SMALL_PULL / 2


def test_control_without_the_freeze_every_collection_walks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving.gc, "freeze", lambda: None)
    assert frozen_while_it_serves(tmp_path, monkeypatch) == 0
