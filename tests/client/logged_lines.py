"""The lines that clients write to the log."""

import logging

import pytest

CLIENT_LOGS = ("lanemq.client", "lanemq.net.calling.connection", "lanemq.net.calling.blocking")


def warnings_of_clients(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings and errors of clients; the brokers of the tests run in this process, too."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith(CLIENT_LOGS)
    ]
