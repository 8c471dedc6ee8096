"""Two loads of one topic with one group in one Spark application: the second is refused."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.spark_driver import Query, send, until, values

from lanemq.model.errors import UsageError
from lanemq.model.units import Millis
from lanemq.spark.group.one_load import OneLoad
from lanemq.spark.read import stream_driver
from lanemq.testing.embedded import EmbeddedBroker

AT_ONCE = Millis(0)

HOLD = """
import sys
from lanemq.spark.group.one_load import OneLoad
held = OneLoad(7, "billing")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanemq.spark.group.one_load._folder", lambda: tmp_path)


def test_a_second_load_is_refused_until_the_first_ends() -> None:
    first = OneLoad(7, "billing")
    with pytest.raises(UsageError, match=r"another load of this group.*use the data frame twice"):
        OneLoad(7, "billing", AT_ONCE)
    first.close()
    first.close()
    OneLoad(7, "billing", AT_ONCE).close()


def test_other_groups_and_other_applications_are_free() -> None:
    held = [OneLoad(7, "billing"), OneLoad(7, "audit", AT_ONCE), OneLoad(8, "billing", AT_ONCE)]
    for each in held:
        each.close()


def test_no_file_is_left_behind(tmp_path: Path) -> None:
    OneLoad(7, "billing").close()
    assert list(tmp_path.iterdir()) == []


def test_the_kill_of_a_process_frees_its_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UsageError):
            OneLoad(7, "billing", AT_ONCE)
        other.send_signal(signal.SIGKILL)
        other.wait()
    OneLoad(7, "billing", AT_ONCE).close()


def test_two_loads_of_a_group_in_one_application_are_refused(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_driver, "driver_process", lambda: 7)
    monkeypatch.setattr(stream_driver.OneLoad.__init__, "__defaults__", (AT_ONCE, None))
    options = {"servers": broker.address, "topic": topic, "group": "billing"}
    with Query(**options), pytest.raises(UsageError, match="another load of this group"):
        Query(**options)
    Query(**options).stop()


def test_without_the_refusal_each_of_two_loads_gets_some_of_the_messages(broker: EmbeddedBroker, topic: str) -> None:
    """The control: no query fails, and neither sees every message."""
    options = {"servers": broker.address, "topic": topic, "group": "billing", "startingOffsets": "earliest"}
    with Query(**options) as one, Query(**options) as two:
        members = [each.reader._driver for each in (one, two)]
        for each in (one, two):
            each.plan()
        until(lambda: all(each._membership is not None and each._membership.usable() for each in members))
        send(broker.address, topic, range(40))
        got: list[list[int]] = [[], []]

        def all_read() -> bool:
            for mine, query in zip(got, (one, two), strict=True):
                mine += values(query.everything())
            return len(got[0]) + len(got[1]) == 40

        until(all_read)
        assert sorted(got[0] + got[1]) == list(range(40))
        assert all(got), "each has a part"
