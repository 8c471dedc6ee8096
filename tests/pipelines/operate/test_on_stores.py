"""Operators find and redrive dead letters and parked keys wherever the checkpoint is. No JVM runs the stage."""

from typing import Any

import pytest
from tests.pipelines.fakes import FakeSink
from tests.pipelines.stages.transitions.pipeline_fixture import FakeFrame, FakeSpark, Sent, arrow, never

from lanemq.files import StorePath, write_durably
from lanemq.pipelines import DeadLetter, Event, Park, Transitions, dead_letters, parked
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.running.batch_processor import BatchProcessor
from lanemq.pipelines.running.effect_history import EffectHistory
from lanemq.pipelines.running.runner import dead_letter_sink

FAILS = {"now": True}


def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    if FAILS["now"] and event.key == "a":
        raise ConnectionError("the service is away")
    return (state or 0) + 1, [{"key": event.key, "n": event.value["n"]}]


class Started:
    """A run whose checkpoint is at the root."""

    def __init__(self, root: StorePath, policy: Any) -> None:
        self.checkpoint = Checkpoint(root, "orders")
        self.sink = FakeSink()
        stage = Transitions(step=step, outputs="key string, n long", on_failure=policy)
        dead = dead_letter_sink(self.checkpoint.dead_letters_folder)
        self.processor = BatchProcessor(stage, self.sink, dead, self.checkpoint, EffectHistory(None, "orders"))
        write_durably(root / "metadata", b'{"id": "1"}')
        write_durably(root / "offsets" / "0", b'v1\n{}\n{"orders": {"broker-a/0": 2}}')
        self.processor.open(FakeSpark(never))  # type: ignore[arg-type]

    def process(self) -> None:
        frame: Any = FakeFrame([[arrow([Sent(0, 0, "a", {"n": 0}), Sent(0, 1, "b", {"n": 1})])]], never)
        self.processor.process_batch(frame, 0)

    def close(self) -> None:
        self.processor.close()
        self.checkpoint.close()


@pytest.fixture
def place(root: StorePath) -> StorePath:
    if str(root).startswith("memory:"):
        pytest.skip("Delta does not reach objects in the memory of obstore")
    FAILS["now"] = True
    return root


def test_a_dead_letter_is_listed_and_redriven_once(place: StorePath) -> None:
    run = Started(place, DeadLetter(skip=True))
    run.process()
    found = dead_letters(place)
    assert [(each.key, each.offset, each.state.value) for each in found.records()] == [("a", 0, "open")]
    assert found.counts() == {"open": 1}
    assert [each.key for each in found.redrive(everything=True)] == ["a"]
    assert found.redrive(everything=True) == [], "it was asked for"
    FAILS["now"] = False
    assert run.processor.due() == 0
    applied = run.processor.process_retry_pass(0)
    assert applied is not None
    assert (applied.outputs, found.counts(), found.requested()) == (1, {"redriven": 1}, 0)
    assert run.processor.due() is None
    assert any((place / "dead_letters" / "_delta_log").glob("*.json"))
    run.close()


def test_a_parked_key_is_shown_and_goes_on_after_a_redrive_and_a_restart(place: StorePath) -> None:
    run = Started(place, Park())
    run.process()
    lanes = parked(place)
    assert [each.lane for each in lanes.waiting()] == ["a"]
    lanes.redrive("a")
    run.close()
    FAILS["now"] = False
    again = Started(place, Park())
    assert again.processor.due() == 0
    again.processor.process_retry_pass(0)
    assert (lanes.waiting(), lanes.show("a").state) == ([], 1)
    again.close()
