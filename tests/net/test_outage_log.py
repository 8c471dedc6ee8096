"""An outage is two lines in the log of a client, and a reminder every 30 s, however many requests fail."""

import logging

import pytest
from tests.client.virtual_time import ManualClock

from lanemq.model.errors import ConnectFailed, ConnectionLost, InvalidOption, RequestTimedOut
from lanemq.net.rate_limited_log import MAX_TEXTS, TEXT_CHARS, FewLines, OutageLog, RateLimitedLog

LOG = logging.getLogger("lanemq.outages")
REFUSED = ConnectFailed("connection refused")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def outages(clock: ManualClock) -> OutageLog:
    return OutageLog(LOG, clock)


def test_many_failures_are_one_line_until_the_server_answers(
    clock: ManualClock, outages: OutageLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        outages.failed("host:1", REFUSED)
        clock.at += 50
    outages.answered("host:1")
    outages.answered("host:1")
    assert caplog.messages == [
        "host:1 does not answer, trying again until it does: connection refused",
        "host:1 answers again after 5.0 s",
    ]
    assert not outages.away


def test_a_long_outage_is_mentioned_every_30_seconds(
    clock: ManualClock, outages: OutageLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1300):
        outages.failed("host:1", REFUSED)
        clock.at += 50
    assert caplog.messages[1:] == [
        "host:1 has not answered for 30 s: connection refused",
        "host:1 has not answered for 60 s: connection refused",
    ]


def test_a_server_that_comes_and_goes_is_two_lines_in_30_seconds(
    clock: ManualClock, outages: OutageLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        outages.failed("host:1", RequestTimedOut("no answer"))
        clock.at += 100
        outages.answered("host:1")
        clock.at += 100
    assert len(caplog.messages) == 2


def test_servers_do_not_hide_each_other(outages: OutageLog, caplog: pytest.LogCaptureFixture) -> None:
    outages.failed("host:1", REFUSED)
    outages.failed("host:2", REFUSED)
    outages.answered("host:1")
    assert len(caplog.messages) == 3
    assert list(outages.away) == ["host:2"]


def test_a_lost_connection_alone_is_no_outage(outages: OutageLog, caplog: pytest.LogCaptureFixture) -> None:
    """The next request connects again; only if that fails, the server is away."""
    outages.failed("host:1", ConnectionLost("closed"))
    assert (caplog.messages, outages.away) == ([], {})


def test_a_request_without_an_answer_is_left_to_the_outage_log(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = RateLimitedLog(LOG, clock)
    log.failed("queue 1", "pull failed", REFUSED)
    log.failed("queue 1", "pull failed", InvalidOption("no such queue"))
    assert caplog.messages == ["pull failed: no such queue"]


def test_a_text_that_a_client_made_long_is_cut(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """A thousand of them are remembered, and each of a client's requests may carry 256 KiB of names."""
    limited = RateLimitedLog(LOG, clock)
    limited.warn("", "x" * 250_000)
    limited.warn("", "x" * 250_001)
    assert [len(text) for text in caplog.messages] == [TEXT_CHARS]


def test_lines_that_differ_are_limited_for_each_subject(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    lines = FewLines(LOG, clock, limit=2)
    for number in range(10):
        lines.write(logging.WARNING, "group g", f"key {number}")
    lines.write(logging.ERROR, "group h", "another")
    assert caplog.messages == [
        "key 0",
        "key 1",
        "group g: more of these lines are left out, for up to a minute",
        "another",
    ]
    clock.at += 60_000
    lines.write(logging.WARNING, "group g", "key 10")
    assert caplog.messages[-1] == "key 10"
    for number in range(2 * MAX_TEXTS):
        lines.write(logging.WARNING, f"group {number}", "x")
    assert caplog.messages.count("x") == MAX_TEXTS - 1, "subjects are limited too"


def test_without_a_limit_every_line_is_logged(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """Negative control of the test before."""
    lines = FewLines(LOG, clock, limit=1_000)
    for number in range(10):
        lines.write(logging.WARNING, "group g", f"key {number}")
    assert len(caplog.messages) == 10
