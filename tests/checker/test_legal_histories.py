"""What must not raise an alarm: each of these looks odd and is right."""

from collections.abc import Callable

import pytest

from lanemq.checker.checking import Options
from lanemq.checker.verdict import Report, Verdict

Judge = Callable[..., Report]

LEGAL = {
    "replay by the next owner": (
        "a turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\nb turn 0 k\nb end 0 k ok\nb turn 1 k\nb end 1 k ok\nb turn 2 k"
    ),
    "killed in a turn, taken over": (
        "a turn 0 k epoch=1\nb granted b 2\nb turn 0 k epoch=2\nb end 0 k ok\nb commit 1 epoch=2"
    ),
    "paused in a turn, result thrown away": (
        "a granted a 1\na turn 0 k epoch=1\nb granted b 2\nb turn 0 k epoch=2\na end 0 k abandoned\nb end 0 k ok"
    ),
    "paused before a turn, result thrown away": (
        "a granted a 1\nb granted b 2\nb turn 0 k epoch=2\na turn 0 k epoch=1\nb end 0 k ok\n"
        "b turn 1 k epoch=2\na end 0 k abandoned\nb end 1 k ok"
    ),
    "retry until it works": "a turn 0 k\na end 0 k retry\na turn 0 k\na end 0 k ok\na turn 1 k",
    "dead letter, then the next": "a turn 0 k\na end 0 k retry\na dead 0 k\na turn 1 k\na end 1 k ok\na commit 2",
    "dead letter again after a crash": (
        "a turn 0 k\na end 0 k retry\na dead 0 k\nb turn 0 k\nb end 0 k retry\nb dead 0 k\nb turn 1 k"
    ),
    "skipped by a person": "a turn 0 k\na end 0 k retry\nx skip 0 k\na turn 1 k\na end 1 k ok\na commit 2",
    "filtered by tag": (
        "p send m0 k\np acked m0 k 0\na reset 0\na skip 0 k\na turn 1 j\na end 1 j ok\na commit 2"
    ),
    "keys of a queue run side by side": (
        "a turn 3 k\na turn 1 j\na end 1 j ok\na turn 2 j\na end 3 k ok\na end 2 j ok\na commit 4"
    ),
    "several messages in one call": (
        "a turn 0 k batch=7\na turn 1 k batch=7\na end 0 k ok\na end 1 k ok\na turn 2 k batch=8"
    ),
    "several messages in one call, all again": (
        "a turn 0 k batch=7\na turn 1 k batch=7\na end 0 k retry\na end 1 k retry\na turn 0 k batch=8\na turn 1 k batch=8"
    ),
    "reset to an earlier offset": (
        "a turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\na commit 2\nx reset 0\na turn 0 k\na end 0 k ok"
    ),
    "reset past what was not read": "a turn 0 k\na end 0 k ok\nx reset 9\na turn 9 k\na end 9 k ok\na commit 10",
    "delivered before the acknowledgement came": (
        "p send m0 k\na turn 0 k id=m0\na end 0 k ok\na commit 1\np acked m0 k 0"
    ),
    "unknown send that was stored": "p send m0 k\np unknown m0 k\na turn 0 k id=m0\na end 0 k ok",
    "unknown send that was not stored": (
        "p send m0 k\np unknown m0 k\np send m1 k\np acked m1 k 0\na turn 0 k id=m1"
    ),
    "pipelined acknowledgements arrive out of order": (
        "p send m0 k\np send m1 k\np acked m1 k 1\np acked m0 k 0\na turn 0 k id=m0"
    ),
    "sent again by the user after a failure": (
        "p send m0 k\np failed m0 k\np send m1 k\np acked m1 k 0\na turn 0 k id=m1"
    ),
    "commit line of a paused owner comes late": (
        "a granted a 1\na turn 0 k epoch=1\na end 0 k ok\nb granted b 2\nb turn 1 k epoch=2\nb end 1 k ok\n"
        "b commit 2 epoch=2\na commit 1 epoch=1 asked=35"
    ),
    "grant line of a paused member comes late": "b granted b 2\na granted a 1 asked=5\nb turn 0 k epoch=2",
    "broker and member both tell of the lease": (
        "broker granted a 1 until=90\na granted a 1 until=60 asked=5\na turn 0 k epoch=1\na end 0 k ok\n"
        "a released a 1\nbroker released a 1\nbroker granted b 2 until=200\nb granted b 2 until=150"
    ),
    "expired lease goes to another": "broker granted a 1 until=30\nbroker granted b 2 at=50\nb turn 0 k epoch=2",
    "restart keeps the commit": "a turn 0 k\na end 0 k ok\na commit 1\nbroker recovered 1\na turn 1 k",
    "restart makes everything since the commit run again": (
        "a turn 0 k\na end 0 k ok\na turn 1 k\na end 1 k ok\na commit 1\nbroker recovered 1\na turn 1 k"
    ),
    "retention removed what was not read": (
        "p send m0 k\np acked m0 k 0\nx reset 0\nbroker trimmed 1\na turn 1 j\na end 1 j ok\na commit 2"
    ),
    "end and next start in the same moment": "a turn 0 k at=10\nb turn 0 k at=20\na end 0 k ok at=21\nb end 0 k ok",
    "two groups, each at its own pace": (
        "p send m0 k\np acked m0 k 0\na turn 0 k id=m0\na end 0 k ok\na commit 1\n"
        "z turn 0 k id=m0 group=h\nz end 0 k ok group=h\nz commit 1 group=h"
    ),
    "effects of two sinks": "a turn 0 k\na effect 0 k sink=x\na effect 0 k sink=y\na end 0 k ok\na turn 1 k\na effect 1 k sink=x",
    "messages without a key in any order": "a turn 1 key=\na turn 0 key=\na end 1 key= outcome=ok\na end 0 key= outcome=ok\na commit 2",
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_history_raises_no_alarm(judge: Judge, name: str) -> None:
    report = judge(LEGAL[name])
    assert report.verdict is Verdict.PASS, [found.text for found in report.violations]


@pytest.mark.parametrize(
    ("received", "legal"),
    [("123", True), ("2123", False), ("12123", True), ("32123", False), ("1323", False)],
)
def test_first_occurrence_rule_decides_the_five_classic_cases(judge: Judge, received: str, legal: bool) -> None:
    """A subsequence check passes three of the four bad ones; a strict one refuses legal redelivery."""
    sends = "".join(f"p send m{i} k\np acked m{i} k {i}\n" for i in (1, 2, 3))
    turns, owner, high = "x reset 1\n", 0, 0
    for message in map(int, received):
        owner += message <= high
        high = message
        turns += f"c{owner} turn {message} k id=m{message}\nc{owner} end {message} k ok\n"
    assert (judge(sends + turns).verdict is Verdict.PASS) == legal


def test_repeats_in_the_log_are_counted_when_allowed(judge: Judge) -> None:
    script = "p send m0 k\np acked m0 k 0\na turn 0 k id=m0\na end 0 k ok\na turn 1 k id=m0"
    report = judge(script, Options(idempotent=False))
    assert report.verdict is Verdict.PASS
    assert report.coverage["log_duplicates"] == 1


def test_foreign_producers_make_no_phantoms(judge: Judge) -> None:
    script = "p send m0 k\np acked m0 k 0\na turn 0 k id=m0\na end 0 k ok\na turn 1 k id=foreign"
    assert judge(script, Options(foreign_producers=True)).verdict is Verdict.PASS
