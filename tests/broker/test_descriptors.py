"""A process without descriptors (EMFILE, by a real RLIMIT_NOFILE) is busy for a while, not broken.

The test lowers the limit of a running broker, so that every `open` and `accept` of it fails, and raises it again.
"""

import contextlib
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.broker.conftest import StartProcess
from tests.broker.raw_client import RawClient, bodies
from tests.broker.running import BrokerProcess

from lanemq.log.state.database import State
from lanemq.wire.codes import RequestCode, ResponseCode

BUSY = ResponseCode.SYSTEM_BUSY
PATIENT = 30.0


@contextlib.contextmanager
def no_descriptors(process: BrokerProcess) -> Iterator[None]:
    """The limit is below the descriptors that are open: these stay, and no further one is given."""
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (1, hard))
    try:
        yield
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, hard))


def until(what: str, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.mark.slow
def test_without_descriptors_a_broker_is_busy_and_goes_on_when_they_return(
    start_process: StartProcess, folder: Path
) -> None:
    process = start_process(segment_bytes=64 * 1024)
    stored: list[bytes] = []
    with RawClient(process.address) as raw, contextlib.ExitStack() as later:
        raw.create("T", 1)

        def send() -> int:
            body = b"%d" % len(stored) + bytes(20_000)
            code = raw.send("T", body, stamp=f"p.0.{len(stored)}").code
            if code == 0:
                stored.append(body)
            return code

        assert send() == 0
        until("a checkpoint files the message", lambda: list((folder / "data" / "index").rglob("0" * 20)))
        with no_descriptors(process):
            until("the index file cannot be opened", lambda: raw.pull("T", 0).code == BUSY)
            until("the next log file cannot be opened", lambda: send() == BUSY)
            assert raw.runtime()["laneReadOnly"] == "false"
            assert raw.create("U").code == BUSY
            assert raw.commit(1).code == 0
            assert raw.lane_lock("c").lane_leases
            refused = raw.runtime()["laneRefused_no_descriptors"]
            waiting = later.enter_context(RawClient(process.address))
            asked = waiting.post(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
            until("an accept fails", lambda: raw.runtime()["laneRefused_no_descriptors"] != refused)
        assert int(waiting.answer(asked).ext["offset"]) >= 1, "it was not refused, only late"
        until("sends continue by themselves", lambda: send() == 0)
        assert raw.create("U").code == 0
        assert bodies(raw.read("T")) == stored
    assert process.stop() == 0
    assert "read-only" not in process.log
    state = State(folder / "data" / "state.db")
    assert not state.rebuild_requested(), "an index that could not be opened is not lost"
    state.close()
