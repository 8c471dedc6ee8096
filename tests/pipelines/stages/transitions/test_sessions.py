"""Session windows: the step of the guide and of the example, in batches that end anywhere."""

import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest
from tests.documents import ROOT, snippets
from tests.pipelines.stages.transitions.pipeline_fixture import Pipeline, Sent

from lanemq.pipelines import EventTime

spec = importlib.util.spec_from_file_location("sessions_example", ROOT / "examples" / "sessions.py")
assert spec is not None
assert spec.loader is not None
EXAMPLE = importlib.util.module_from_spec(spec)
spec.loader.exec_module(EXAMPLE)

GUIDE: dict[str, Any] = {}
exec(snippets("python", [ROOT / "docs" / "guides" / "sessions.md"])[0].code, GUIDE)

OUTPUTS = "visitor string, first long, last long, clicks long"


def found(folder: Path, sent: list[tuple[str, dict[str, int]]], cuts: int, lateness: float) -> list[tuple[Any, ...]]:
    """The sessions that are closed after all clicks, and one click of a visitor long after them."""
    options = {"event_time": EventTime(of="at", lateness=lateness), "outputs": OUTPUTS}
    running = Pipeline(folder, step=GUIDE["step"], on_timer=GUIDE["close"], **options)
    after = max(click["at"] for _, click in sent) + 10 * EXAMPLE.GAP
    clicks = [*sent, ("last", {"at": after})]
    messages = [Sent(0, at, key, value, stored=after) for at, (key, value) in enumerate(clicks)]
    size = -(-len(messages) // cuts)
    for begin in range(0, len(messages), size):
        running.process(*messages[begin : begin + size])
    return sorted(tuple(row.values()) for row in running.sink.rows())


@pytest.mark.parametrize("cuts", [1, 7])
def test_the_guide_finds_the_sessions_of_a_plain_count_wherever_batches_end(tmp_path: Path, cuts: int) -> None:
    sent = list(EXAMPLE.clicks(600, random.Random(cuts)))
    assert found(tmp_path, sent, cuts, EXAMPLE.DISORDER) == EXAMPLE.counted(sent)


def test_without_lateness_sessions_are_torn(tmp_path: Path) -> None:
    """Negative control: a click that is a little behind finds its session closed."""
    times = [0, EXAMPLE.GAP - 1, EXAMPLE.GAP, 2 * EXAMPLE.GAP - 1]
    sent = [("a", {"at": EXAMPLE.BEGIN + at}) for at in (times[0], times[2], times[1], times[3])]
    assert len(EXAMPLE.counted(sent)) == 1
    assert len(found(tmp_path / "late", sent, 1, 0)) > 1
    assert found(tmp_path / "right", sent, 1, 60) == EXAMPLE.counted(sent)


def test_the_example_and_the_guide_have_the_same_rule() -> None:
    class Context:
        event_time_ms = 0

        def set_timer(self, *_: object, **__: object) -> None: ...

    dice, sessions = random.Random(1), []
    for _ in range(300):
        Context.event_time_ms = dice.randrange(200) * EXAMPLE.GAP // 3
        expected = EXAMPLE.joined(sessions, Context.event_time_ms)
        sessions, _rows = GUIDE["step"](sessions, None, Context())
        assert sessions == expected
