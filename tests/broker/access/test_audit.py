"""The audit log: administrative requests with user, address and outcome, without secrets."""

import json
import logging
from pathlib import Path

import pytest
from tests.broker.conftest import Start

from lanemq.wire.codes import RequestCode, ResponseCode


def test_administrative_requests_are_logged_and_others_are_not(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    raw = start().connect()
    with caplog.at_level(logging.INFO, "lanemq.audit"):
        raw.create("T", 4, Signature="secret", SecurityToken="secret", AccessKey="me")
        raw.send("T")
        raw.pull("T")
        raw.commit(1)
        raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "lanemq.audit"]
    assert [(line["request"], line["outcome"]) for line in lines] == [
        ("UPDATE_AND_CREATE_TOPIC", "allowed"),
        ("DELETE_TOPIC_IN_BROKER", "allowed"),
    ]
    assert (lines[0]["user"], lines[0]["address"], lines[0]["fields"]["topic"]) == ("me", "127.0.0.1", "T")
    assert "secret" not in caplog.text


def test_a_request_that_the_guard_refuses_is_logged_with_the_reason(
    start: Start, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = folder / "users.toml"
    users.write_text('[[user]]\naccess_key = "boss"\nsecret_key = "123456"\nadmin = true\n')
    raw = start(users=users).connect()
    with caplog.at_level(logging.INFO, "lanemq.audit"):
        assert raw.create("T", 4).code == ResponseCode.NO_PERMISSION
        raw.send("T")
    (line,) = [json.loads(record.getMessage()) for record in caplog.records if record.name == "lanemq.audit"]
    assert line["user"] is None
    assert line["outcome"].startswith("refused: this broker takes signed requests only")
