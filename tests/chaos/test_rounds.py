"""kill -9 and SIGSTOP of everybody under load, round after round; `make chaos ROUNDS=500` runs as many as wanted."""

import json
import os

import pytest
from tests.chaos.campaign import FAULTS, Campaign
from tests.chaos.system import SystemUnderTest, complaint

from lanemq.checker.verdict import Report, Verdict

ROUNDS = int(os.environ.get("LANEMQ_CHAOS_ROUNDS", "20"))
SEED = int(os.environ.get("LANEMQ_CHAOS_SEED", "1"))


@pytest.mark.slow
@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_after_every_crash_what_was_acknowledged_is_there_in_order_and_everybody_goes_on(
    system: SystemUnderTest,
) -> None:
    campaign = Campaign(system, SEED)
    campaign.play(ROUNDS)
    report = campaign.end()
    assert report.verdict is Verdict.PASS, complaint(report)
    assert len(campaign.rounds) == min(ROUNDS, len(FAULTS))
    print(json.dumps(summary(campaign, report)))


def summary(campaign: Campaign, report: Report) -> dict[str, object]:
    """One line for a table of what was run."""
    names = ("faults", "acked", "turns", "redelivery", "rebalance", "zombie_turns", "late_turns", "forgotten_commits")
    return {
        "seed": SEED,
        "rounds": dict(campaign.rounds),
        "stored": campaign.audit.stored,
        **{name: report.coverage[name] for name in names},
        "verdict": report.verdict.name,
    }
