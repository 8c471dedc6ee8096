"""What members did that recorded no history is neither fine nor a violation: the checker says that it does not know."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.checker.conftest import parse
from tests.checker.history_files import write_history
from tests.checker.test_planted_violations import SENT

from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.explain import describe
from lanemq.checker.verdict import Report, Verdict

Judge = Callable[..., Report]

UNDECIDED = {
    "a group records nothing beside one that does": (
        SENT + "a turn 0 k id=m0\na end 0 k ok\nbroker granted z 1 group=h\nbroker commit 1 epoch=1 group=h\n"
        "broker commit 3 epoch=1 group=h"
    ),
    "a group without order records nothing": (
        SENT + "a turn 0 k id=m0\na end 0 k ok\nbroker commit 1 group=h\nbroker commit 3 group=h"
    ),
    "a group without order records nothing, and is faster than the acknowledgement": (
        SENT + "a turn 0 k id=m0\na end 0 k ok\np send m3 k\nbroker commit 3 group=h\nbroker commit 4 group=h\n"
        "p acked m3 k 3"
    ),
    "an owner without a history finishes what a killed one had begun": (
        SENT + "broker granted a 1\na granted a 1\na turn 0 k id=m0 epoch=1\nbroker granted z 2\n"
        "broker commit 2 epoch=2\nbroker granted b 3\nb granted b 3\nb turn 2 k id=m2 epoch=3\n"
        "b end 2 k ok epoch=3\nbroker commit 3 epoch=3"
    ),
    "an owner without a history leaves finished messages above its offset": (
        "p send m0 j\np acked m0 j 0\np send m1 k\np acked m1 k 1\np send m2 k\np acked m2 k 2\n"
        "broker granted z 1\nbroker commit 0 epoch=1\nbroker granted b 2\nb granted b 2\nb turn 0 j id=m0 epoch=2\n"
        "b end 0 j ok epoch=2\nb turn 2 k id=m2 epoch=2\nb end 2 k ok epoch=2\nbroker commit 3 epoch=2"
    ),
    "an owner without a history leaves finished messages above its offset, and the run ends": (
        "p send m0 j\np acked m0 j 0\np send m1 k\np acked m1 k 1\np send m2 k\np acked m2 k 2\n"
        "broker granted z 1\nbroker commit 0 epoch=1\nbroker granted b 2\nb granted b 2\nb turn 2 k id=m2 epoch=2"
    ),
    "an owner without a history obeys a reset": (
        SENT + "broker granted z 1\nbroker commit 2 epoch=1\nbroker commit 0 epoch=1\nbroker granted b 2\n"
        "b granted b 2\nb turn 0 k id=m0 epoch=2\nb end 0 k ok epoch=2\nbroker commit 1 epoch=2"
    ),
    "an owner in between recorded nothing, and neither did the broker": (
        SENT + "a granted a 1\na turn 0 k id=m0 epoch=1\na end 0 k ok epoch=1\na commit 1 epoch=1\nb granted b 3\n"
        "b turn 2 k id=m2 epoch=3\nb end 2 k ok epoch=3\nb commit 3 epoch=3"
    ),
    "a parked message is redriven to an owner without a history": (
        SENT + "broker granted a 1\na granted a 1\na turn 0 k id=m0 epoch=1\na end 0 k retry epoch=1\n"
        "broker parked 0 k\na parked 0 k\nbroker commit 1 epoch=1\nbroker granted z 2\nbroker redriven 0 k 0\n"
        "broker granted b 3\nb granted b 3\nb turn 1 k id=m1 epoch=3\nb end 1 k ok epoch=3"
    ),
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_members_without_a_history_did_is_unknown(judge: Judge, name: str) -> None:
    report = judge(UNDECIDED[name])
    assert not report.violations, report.violations[0].text
    assert report.verdict is Verdict.UNKNOWN
    assert "some of its members recorded no history" in report.reasons[-1]
    assert "start every member with history=DIR" in report.reasons[-1]


@pytest.mark.parametrize("name", UNDECIDED)
def test_the_others_can_be_judged_without_it(judge: Judge, name: str) -> None:
    """The report still says what was not judged."""
    report = judge(UNDECIDED[name], CheckOptions(foreign_members=True))
    assert report.verdict is Verdict.PASS, report.reasons
    assert "not judged" in describe(report)


def test_a_violation_of_a_recorded_group_outweighs_what_is_unknown_of_another(judge: Judge) -> None:
    script = UNDECIDED["a group records nothing beside one that does"] + "\na turn 0 k id=m0"
    report = judge(script)
    assert (report.verdict, report.violations[0].invariant) == (Verdict.VIOLATION, "E3")
    assert report.reasons


def test_a_group_that_records_everything_is_judged_beside_one_that_does_not(judge: Judge) -> None:
    """Negative control: the loss is in the group whose members record."""
    script = UNDECIDED["a group records nothing beside one that does"] + "\na commit 3"
    found = judge(script).violations[0]
    assert (found.invariant, found.group) == ("S1", "g")


def test_a_group_without_a_history_that_comes_after_the_others_were_done_is_unknown(judge: Judge) -> None:
    others = "p send m0 k\np acked m0 k 0\na turn 0 k id=m0\na end 0 k ok\na commit 1"
    report = judge(f"{others}\nbroker commit 1 group=late epoch=1", CheckOptions(drained=True))
    assert report.verdict is Verdict.UNKNOWN
    assert "group 'late'" in report.reasons[0]


def test_a_member_with_a_history_that_never_learnt_of_its_lease_did_nothing(judge: Judge) -> None:
    """The answer with the grant was lost, or came after the member's end: the redriven message is still to run."""
    unknown = UNDECIDED["a parked message is redriven to an owner without a history"].strip()
    skipped = judge(f"z begin z\n{unknown}")
    assert [each.invariant for each in skipped.violations] == ["B4"]
    rest = "b turn 0 k id=m0 epoch=3\nb end 0 k ok epoch=3\nb turn 1 k"
    assert judge(f"z begin z\n{unknown.replace('b turn 1 k', rest)}").verdict is Verdict.PASS


def test_groups_are_named_in_the_order_of_their_names_whatever_their_queues(tmp_path: Path) -> None:
    """A reason is made of the account of all queues, so that parts of a history can be added up."""
    script = SENT + "a turn 0 k id=m0\na end 0 k ok\np send n0 j\np acked n0 j 0 queue=1\n"
    for group, queue in (("y", 1), ("x", 0), ("y", 0)):
        script += (
            f"broker granted z 1 group={group} queue={queue}\nbroker commit 0 epoch=1 group={group} queue={queue}\n"
        )
        script += f"broker commit 1 epoch=1 group={group} queue={queue}\n"
    report = check([write_history(tmp_path / "run", parse(script))])
    assert [reason[:9] for reason in report.reasons] == ["group 'x'", "group 'y'"]
    assert {group: account.undecided for group, account in report.groups.items()} == {"g": 0, "x": 1, "y": 2}
