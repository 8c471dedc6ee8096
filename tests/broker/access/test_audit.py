"""The audit log: administrative requests with user, address and outcome, without secrets."""

import errno
import io
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient
from tests.broker.running import ManualClock

from lanemq.broker.access import audit
from lanemq.broker.access.audit import ADMINISTRATIVE, Audit
from lanemq.broker.dispatch import Dispatch
from lanemq.cli import output
from lanemq.cli.output import log_audit_to
from lanemq.core.brokering.progress_store import ProgressChange
from lanemq.log.state.progress_rows import ProgressRows
from lanemq.model.errors import StorageError
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command

RESET = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}
DELETE = Command(RequestCode.DELETE_TOPIC_IN_BROKER, 1, ext={"topic": "x" * 400, "AccessKey": "n" * 400})


def peer_at(address: str, *, known: bool = False) -> Any:
    return SimpleNamespace(remote=SimpleNamespace(host=address), known=known, send=len)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "lanemq.audit"]


def outcomes(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [(line["request"], line["outcome"]) for line in lines_of(caplog)]
    caplog.clear()
    return found


@pytest.fixture
def audit_file(tmp_path: Path) -> Iterator[logging.Handler]:
    """What writes the audit log to `audit.log` in the test's folder."""
    log, level, propagates = audit.log, audit.log.level, audit.log.propagate
    log_audit_to(tmp_path / "audit.log")
    handler = log.handlers[-1]
    yield handler
    log.removeHandler(handler)
    handler.close()
    log.setLevel(level)
    log.propagate = propagates


@pytest.fixture
def guarded(start: Start, folder: Path) -> RawClient:
    """A client without credentials, of a broker with users."""
    users = folder / "users.toml"
    users.write_text('[[user]]\naccess_key = "boss"\nsecret_key = "123456"\nadmin = true\n')
    return start(users=users).connect()


def test_administrative_requests_are_logged_and_others_are_not(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    raw = start().connect()
    with caplog.at_level(logging.INFO, "lanemq.audit"):
        raw.create("T", 4, Signature="secret", SecurityToken="secret", AccessKey="me")
        raw.send("T")
        raw.pull("T")
        raw.commit(1)
        raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    lines = lines_of(caplog)
    assert [(line["request"], line["outcome"]) for line in lines] == [
        ("UPDATE_AND_CREATE_TOPIC", "done"),
        ("DELETE_TOPIC_IN_BROKER", "done"),
    ]
    assert (lines[0]["user"], lines[0]["address"], lines[0]["fields"]["topic"]) == ("me", "127.0.0.1", "T")
    assert "secret" not in caplog.text


def test_a_request_that_the_guard_refuses_is_logged_with_the_reason(
    guarded: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "lanemq.audit"):
        assert guarded.create("T", 4).code == ResponseCode.NO_PERMISSION
        guarded.send("T")
    (line,) = lines_of(caplog)
    assert line["user"] is None
    assert line["outcome"].startswith("refused: this broker takes signed requests only")


def test_a_body_that_the_guard_refuses_before_it_checks_the_user_is_logged(
    guarded: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "lanemq.audit"):
        guarded.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b"x" * 20_000)
    ((_, outcome),) = outcomes(caplog)
    assert outcome.startswith("refused: a body of 20000 bytes is too large")


def flood(auditing: Audit, clock: ManualClock, addresses: int = 1) -> None:
    """1,000 refused requests without credentials within a minute; then an operator does something."""
    for number in range(1_000):
        auditing.refused(peer_at(f"10.0.0.{number % addresses}"), DELETE, "no")
    clock.passed += 60_000
    auditing.refused(peer_at("10.9.9.9", known=True), DELETE, "user 'me' may not")


def test_refusals_without_a_valid_user_take_two_lines_per_address_and_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the control: if each is logged, anyone who can connect pushes all other lines out of the log."""
    clock = ManualClock()
    with caplog.at_level(logging.INFO, "lanemq.audit"):
        flood(Audit(clock), clock)
        first, counted, operator = lines_of(caplog)
        assert (first["address"], first["outcome"]) == ("10.0.0.0", "refused: no")
        assert len(json.dumps(first)) < 400
        assert (counted["address"], counted["count"]) == ("10.0.0.0", 999)
        assert operator["fields"]["topic"]
        caplog.clear()
        flood(Audit(clock), clock, addresses=200)
        lines = lines_of(caplog)
        assert len(lines) == 2 * audit.MAX_ADDRESSES + 2
        assert sum(line.get("count", 1) for line in lines) == 1_001, "all are counted"
        caplog.clear()
        monkeypatch.setattr(Audit, "_count_unknown", Audit._log)
        flood(Audit(clock), clock)
        assert len(lines_of(caplog)) == 1_001


def test_refusals_of_users_are_counted_beyond_a_hundred_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the control: a user who may do nothing could otherwise push what an administrator did out of the log."""
    clock = ManualClock()
    user, other = peer_at("10.0.0.1", known=True), peer_at("10.0.0.2", known=True)

    def refuse_many() -> list[dict[str, Any]]:
        auditing = Audit(clock)
        for _ in range(1_000):
            auditing.refused(user, DELETE, "user 'me' may not")
        auditing.refused(other, DELETE, "user 'you' may not")
        clock.passed += 60_000
        auditing.refused(other, DELETE, "user 'you' may not")
        found = lines_of(caplog)
        caplog.clear()
        return found

    with caplog.at_level(logging.INFO, "lanemq.audit"):
        lines = refuse_many()
        assert len(lines) == 103
        assert (lines[101]["address"], lines[101]["outcome"]) == ("10.0.0.1", "refused: 900 more of users")
        monkeypatch.setattr(audit, "LINES_OF_USERS", 10_000)
        assert len(refuse_many()) == 1_002


def test_a_request_is_logged_once_with_what_became_of_it(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Done, or refused before anything was changed, also if the broker cannot do it at all."""
    raw = start().connect()
    with caplog.at_level(logging.INFO, "lanemq.audit"):
        raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "missing"})
        ((_, outcome),) = outcomes(caplog)
        assert outcome.startswith("refused: topic missing")
        raw.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"retention=1")
        assert outcomes(caplog) == [("UPDATE_BROKER_CONFIG", "refused: request type 25 not supported")]
        raw.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b"x" * 20_000)
        ((_, outcome),) = outcomes(caplog)
        assert outcome.startswith("refused: a body of 20000 bytes is too large")
        raw.create("T", 1)
        raw.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET)
        assert [outcome for _, outcome in outcomes(caplog)] == ["done", "done"]


def test_a_change_that_is_not_saved_is_logged_as_failed_and_not_as_done(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line waits for the disk: a request that passed every check may still fail there."""
    running = start()
    raw = running.connect()
    raw.create("T", 1)
    real = ProgressRows.save

    def fail(self: ProgressRows, changes: Sequence[ProgressChange], *, synced: bool) -> None:
        if synced and running.broker.running.context.stopping is False:
            raise StorageError("the disk is gone")
        real(self, changes, synced=synced)

    monkeypatch.setattr(ProgressRows, "save", fail)
    with caplog.at_level(logging.INFO, "lanemq.audit"):
        raw.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET)
    # The line of the topic may be late as well.
    resets = [each for each in outcomes(caplog) if each[0] == "INVOKE_BROKER_TO_RESET_OFFSET"]
    assert resets == [("INVOKE_BROKER_TO_RESET_OFFSET", "failed: the disk is gone")]


def test_an_unexpected_error_is_logged_as_failed_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake")

    code, peer = RequestCode.DELETE_TOPIC_IN_BROKER, peer_at("10.0.0.1")
    dispatch = Dispatch([{code: broken}], broken, None, ADMINISTRATIVE, Audit(ManualClock()).watched)
    with caplog.at_level(logging.INFO, "lanemq.audit"):
        dispatch(peer, DELETE)
    assert outcomes(caplog) == [(code.name, "failed: internal error; the broker's log has the details")]


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_makes_no_traceback_of_an_audit_line(
    audit_file: logging.Handler, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line goes to the broker's log instead."""
    assert isinstance(audit_file, logging.StreamHandler)
    audit_file.setStream(FullDisk()).close()
    audit.log.info('{"request":"DELETE_TOPIC_IN_BROKER"}')
    assert "No space left on device" in caplog.text
    assert "DELETE_TOPIC_IN_BROKER" in caplog.text
    assert "Traceback" not in capsys.readouterr().err


def test_files_of_the_audit_log_stay_private_after_a_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(output, "AUDIT_BYTES", 100)
    request.getfixturevalue("audit_file")
    for _ in range(5):
        audit.log.info("x" * 60)
    files = list(tmp_path.iterdir())
    assert len(files) == 5
    assert {each.stat().st_mode & 0o137 for each in files} == {0}
