"""How the end of a turn is recorded: after its lease has ended, and with its error."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lanemq.client.consumer.turns.handler import Stop
from lanemq.client.consumer.turns.history import TurnRecorder, group_in_history
from lanemq.core.consuming.runs import FAILED, NO_LEASE_NEEDED, STOPPED, RunPermit, Suspend
from lanemq.history import History
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.wire.properties import encode_properties

MESSAGE: Any = SimpleNamespace(
    queue=MessageQueue("orders", "b", 0),
    queue_offset=7,
    key="k",
    message_id="m",
    epoch=3,
    attempt=1,
    properties_text="",
    keys=(),
)


class Clock:
    def now(self) -> Millis:
        return Millis(1_000)


def run(usable_until: int, *, dropped: bool = False) -> Any:
    permit = RunPermit(Millis(usable_until))
    permit.withdrawn = permit.dropped = dropped  # type: ignore[attr-defined]
    return SimpleNamespace(permit=permit, usable_until=permit.usable_until)


def events_of(
    folder: Path, *runs: tuple[Any, Stop | None], batch: tuple[Any, ...] = (MESSAGE,), **options: Any
) -> list[dict[str, Any]]:
    history = History(folder / "a.jsonl", "a", lambda: 0, role="consumer")
    recorder = TurnRecorder("g", history, Clock(), **options)  # type: ignore[arg-type]
    for each, stop in runs:
        recorder.begin(batch, each)
        recorder.end(batch, each, stop)
    history.close()
    return [json.loads(line) for line in (folder / "a.jsonl").read_bytes().splitlines()][1:]


@pytest.mark.parametrize(
    ("until", "dropped", "stop", "outcome"),
    [
        (1_001, False, None, "ok"),
        (1_001, False, Stop(FAILED), "retry"),
        (NO_LEASE_NEEDED, False, None, "ok"),
        (1_000, False, None, "late"),
        (1_000, False, Stop(FAILED), "abandoned"),
        (1_001, True, None, "abandoned"),
    ],
)
def test_a_turn_that_outlived_its_lease_is_recorded_as_late_or_abandoned(
    tmp_path: Path, until: int, dropped: bool, stop: Stop | None, outcome: str
) -> None:
    """A frozen handler continues before its member learns that the queue is lost."""
    _, end = events_of(tmp_path, (run(until, dropped=dropped), stop))
    assert end["outcome"] == outcome


class Unspeakable(Exception):
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("stop", "whys"),
    [
        (None, [None, None, None]),
        (Stop(FAILED), [None, None, None]),
        (Stop(STOPPED, succeeded=2), [None, None, None]),
        (Stop(FAILED, error=ValueError("no carrier")), ["ValueError('no carrier')"] * 3),
        (Stop(FAILED, 1, 1, error=ValueError("no carrier")), [None, "ValueError('no carrier')", None]),
        (Stop(Suspend(None), 2, 1, error=ValueError(), dead_letter="no\naddress"), [None, None, "no address"]),
        (Stop(FAILED, 2, error=ValueError("\ud800")), [None, None, "ValueError('\\ud800')"]),
        (Stop(Suspend(None), 2, dead_letter="\ud800"), [None, None, "?"]),
        (Stop(FAILED, 2, error=Unspeakable()), [None, None, "Unspeakable (its text cannot be produced)"]),
    ],
)
def test_the_end_of_a_failed_turn_has_the_error_that_it_failed_with(
    tmp_path: Path, stop: Stop | None, whys: list[str | None]
) -> None:
    """Of a batch, only the messages that the error is about have it."""
    lines = events_of(tmp_path, (run(2_000), stop), batch=(MESSAGE,) * 3)
    assert [line.get("why") for line in lines[3:]] == whys


def test_turns_without_order_are_recorded_without_keys(tmp_path: Path) -> None:
    assert [line["key"] for line in events_of(tmp_path, (run(2_000), None), keyed=False)] == ["", ""]


@pytest.mark.parametrize(
    ("properties", "is_copy"),
    [
        ({"KEYS": "invoice-1 redriven:billing/lanemq/0/5"}, True),
        ({"LANE_ORIGIN": "north:0:7:orders"}, True),
        ({"KEYS": "invoice-1"}, False),
        ({"note": "was redriven: twice"}, False),
    ],
)
def test_turns_of_copies_that_operators_and_mirrors_sent_are_marked(
    tmp_path: Path, properties: dict[str, str], is_copy: bool
) -> None:
    """Their sends are in no history."""
    keys = tuple(properties.get("KEYS", "").split())
    message = SimpleNamespace(**vars(MESSAGE) | {"properties_text": encode_properties(properties), "keys": keys})
    begin, _ = events_of(tmp_path, (run(2_000), None), batch=(message,))
    assert begin.get("copy", 0) == is_copy


@pytest.mark.parametrize(("broadcasting", "name"), [(False, "g"), (True, "g of c1")])
def test_a_broadcasting_member_is_a_group_of_its_own_in_the_history(broadcasting: bool, name: str) -> None:
    options: Any = SimpleNamespace(group="g", broadcasting=broadcasting)
    assert group_in_history(options, "c1") == name
