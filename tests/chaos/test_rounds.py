"""Rounds of kill -9 and SIGSTOP under load; `make chaos ROUNDS=500` runs more of them."""

import json
import os

import pytest
from tests.chaos.campaign import FAULTS, Campaign
from tests.chaos.system import SystemUnderTest, complaint

from lanemq.checker.verdict import Report, Verdict

ROUNDS = int(os.environ.get("LANEMQ_CHAOS_ROUNDS", "7"))
SEED = int(os.environ.get("LANEMQ_CHAOS_SEED", "1"))


@pytest.mark.slow
@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_after_every_crash_acknowledged_messages_are_there_in_order_and_all_continue(
    system: SystemUnderTest,
) -> None:
    campaign = Campaign(system, SEED)
    campaign.run(ROUNDS)
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
