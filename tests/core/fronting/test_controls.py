"""Negative controls: without any one of the guards of hand-outs, the test that defends it fails."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from tests.core.fronting import test_hand_outs as defended

from lanemq.core.fronting import hand_outs

GUARDS: dict[str, tuple[str, str, Callable[[], None]]] = {
    "nothing": ("", "", defended.test_a_handle_counts_once),
    "a handle is of a group and a topic": (
        "(hand_out.group, hand_out.topic) != (group, topic)",
        "False",
        defended.test_a_handle_of_another_group_or_topic_is_stale,
    ),
    "a handle is of one start": (
        "{self._boot}.{hand_out.number}",
        "{hand_out.number}",
        defended.test_a_handle_of_another_start_is_stale,
    ),
    "a handle counts once": (
        "        for handle in hand_out.handles:\n            self._by_handle.pop(handle, None)\n",
        "",
        defended.test_what_is_decided_cannot_be_decided_again_before_its_run_is_finished,
    ),
    "a lost queue commits nothing": (
        "run.permit.dropped or not run.running or now >= hand_out.until",
        "now >= hand_out.until",
        defended.test_a_run_of_a_lost_queue_can_neither_commit_nor_free_a_lane,
    ),
    "nothing is confirmed after the keep-alive deadline": (
        "if now >= run.usable_until:",
        "if False:",
        defended.test_nothing_counts_after_the_keep_alive_deadline,
    ),
    "time ends a run": ("if now >= each.until or ", "if ", defended.test_its_time_ends_a_run),
    "another time voids the handle": (
        "            self._by_handle.pop(hand_out.handles[at], None)\n",
        "",
        defended.test_changing_the_time_voids_the_handle,
    ),
    "a repeated call needs the lease": (
        "or not _may_run(each, now)",
        "",
        defended.test_a_repeated_call_gets_nothing_of_a_queue_that_may_not_be_used,
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_a_test_notices_that_a_guard_is_missing(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line, without, test = GUARDS[guard]
    source = Path(hand_outs.__file__).read_text()
    assert not line or source.count(line) == 1, "the guard is written in another way now"
    mutant = ModuleType(hand_outs.__name__)
    monkeypatch.setitem(sys.modules, hand_outs.__name__, mutant)
    exec(compile(source.replace(line, without) if line else source, "mutant", "exec"), vars(mutant))
    monkeypatch.setattr(mutant, "Ruling", hand_outs.Ruling)
    monkeypatch.setattr(defended, "HandOuts", mutant.HandOuts)
    if line:
        with pytest.raises(AssertionError):
            test()
    else:
        test()
