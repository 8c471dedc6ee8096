"""The alert rules and the dashboard, evaluated by Prometheus's promtool: which series fire an alert, and which do not.

`scripts/promtool.sh` finds promtool or fetches it; without it, these tests are skipped with a line that says so.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.documents import ROOT

from lanemq.broker.monitor.catalogue import CATALOGUE
from lanemq.client.metrics import CONSUMER_CATALOGUE
from lanemq.coordinator.figures import COORDINATOR_CATALOGUE
from lanemq.model.figures import Kind

yaml = pytest.importorskip("yaml")

RULES = ROOT / "deploy" / "prometheus-alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana-dashboard.json"
HERE = {"instance": "a", "job": "lanemq"}
GROUP = {**HERE, "group": "g", "topic": "T"}


class Case(NamedTuple):
    """Series, one value per minute, and the labels of the alert that they fire at `minute`; None: it does not fire."""

    alert: str
    series: dict[str, str]
    labels: dict[str, str] | None
    minute: int = 30


def series(name: str, /, **labels: str) -> str:
    shown = ",".join(f'{label}="{value}"' for label, value in {**HERE, **labels}.items())
    return f"{name}{{{shown}}}"


def of_group(name: str, /, **labels: str) -> str:
    return series(name, group="g", topic="T", **labels)


def buckets(name: str, fast: int, slow: int) -> dict[str, str]:
    """Of each minute's writes, so many take less than 100 ms, and so many about a second."""
    counts = {"0.1": fast, "0.5": fast, "1.0": fast + slow, "+Inf": fast + slow}
    return {series(f"{name}_bucket", le=limit): f"0+{count}x60" for limit, count in counts.items()}


UNREAD, DEAD = of_group("lanemq_unread_deleted_total"), series("lanemq_dead_letters", group="g")
MEMBERS, REFUSED = series("lanemq_group_members", group="g"), series("lanemq_refusals_total", reason="quota")
EXPIRED = series("lanemq_lease_changes_total", change="expired")
FREE, MARK = series("lanemq_disk_free_bytes"), series("lanemq_disk_watermark_bytes")
LAG, LATE = of_group("lanemq_lag_messages"), of_group("lanemq_lag_seconds")
BACKLOG = of_group("lanemq_backlog_seconds")

ONE, TWO = series("lanemq_coordinator_leads", instance="one"), series("lanemq_coordinator_leads", instance="two")
WRITE = series("lanemq_coordinator_store_write_seconds")
JOB = {"job": "lanemq"}

CASES = [
    Case("LaneMQNoCoordinator", {ONE: "0x60", TWO: "0x60"}, JOB),
    Case("LaneMQNoCoordinator", {ONE: "1x20 0x40", TWO: "0x20 1x40"}, None),
    Case("LaneMQCoordinatorWithoutState", {series("lanemq_coordinator_store_up"): "1x20 0x40"}, HERE),
    Case("LaneMQCoordinatorWithoutState", {series("lanemq_coordinator_store_up"): "1x60"}, None),
    Case("LaneMQCoordinatorStateSlow", {WRITE: "0.8x60"}, HERE),
    Case("LaneMQCoordinatorStateSlow", {WRITE: "0.02x60"}, None),
    Case("LaneMQCoordinatorChanged", {series("lanemq_coordinator_terms_total"): "1x25 2x40"}, JOB),
    Case("LaneMQCoordinatorChanged", {series("lanemq_coordinator_terms_total"): "1x60"}, None),
    Case("LaneMQDown", {series("up"): "1x28 0x10"}, HERE),
    Case("LaneMQDown", {series("up"): "1x60"}, None),
    Case("LaneMQCertificateExpires", {series("lanemq_certificate_seconds"): "1209660-60x60"}, HERE),
    Case("LaneMQCertificateExpires", {series("lanemq_certificate_seconds"): "2000000-60x60"}, None),
    Case("LaneMQDown", {series("up"): "1x29 0x10"}, None),  # for less than a minute
    Case("LaneMQReadOnly", {series("lanemq_read_only"): "0x29 1"}, HERE),
    Case("LaneMQReadOnly", {series("lanemq_read_only"): "0x60"}, None),
    Case("LaneMQSendsPaused", {series("lanemq_sends_paused"): "0x20 1x20"}, HERE),
    Case("LaneMQSendsPaused", {series("lanemq_sends_paused"): "1x20 0x20"}, None),
    Case("LaneMQDiskFillsUp", {FREE: "15e9-10e6x500", MARK: "5e8x500"}, HERE, 450),
    Case("LaneMQDiskFillsUp", {FREE: "90e9-10e6x500", MARK: "5e8x500"}, None, 450),
    Case("LaneMQDamagedRecords", {series("lanemq_damaged_places"): "0x20 2x20"}, HERE),
    Case("LaneMQDamagedRecords", {series("lanemq_damaged_places"): "0x60"}, None),
    Case("LaneMQGroupBehind", {BACKLOG: "301x60"}, GROUP),
    Case("LaneMQGroupBehind", {BACKLOG: "400x20 _x40"}, GROUP),  # unknown while indexes are rebuilt
    Case("LaneMQGroupBehind", {BACKLOG: "400x20 0x40"}, None),
    Case("LaneMQGroupBehind", {BACKLOG: "299x60"}, None),
    Case("LaneMQGroupBehind", {BACKLOG: "1x60", LATE: "9000x60"}, None),  # a key is held
    Case("LaneMQKeyHeld", {BACKLOG: "1x60", LATE: "901x60"}, GROUP),
    Case("LaneMQKeyHeld", {BACKLOG: "901x60", LATE: "901x60"}, None),
    Case("LaneMQKeyHeld", {BACKLOG: "1x60", LATE: "20x60"}, None),
    Case("LaneMQLagUnknown", {LAG: "5x60"}, GROUP),
    Case("LaneMQLagUnknown", {LAG: "5x60", LATE: "1x60"}, None),
    Case("LaneMQLagUnknown", {LAG: "0x60"}, None),
    Case("LaneMQUnreadDeleted", {UNREAD: "0x20 7x40"}, GROUP),
    Case("LaneMQUnreadDeleted", {UNREAD: "_x25 7x40"}, GROUP),  # lost before the first scrape
    Case("LaneMQUnreadDeleted", {UNREAD: "100x100 _x5 3x40"}, GROUP, 110),  # after a restart, which begins at 0
    Case("LaneMQUnreadDeleted", {UNREAD: "0x60"}, None),
    Case("LaneMQUnreadDeleted", {UNREAD: "0x20 7x200"}, None, 120),  # an hour ago
    Case("LaneMQGroupWithoutMembers", {LAG: "5x60"}, {"instance": "a", "group": "g"}),
    Case("LaneMQGroupWithoutMembers", {LAG: "5x60", MEMBERS: "0x60"}, {"instance": "a", "group": "g"}),
    Case("LaneMQGroupWithoutMembers", {LAG: "5x60", MEMBERS: "1x60"}, None),
    Case("LaneMQGroupWithoutMembers", {LAG: "0x60"}, None),
    Case("LaneMQGroupWithoutMembers", {LAG: "5x60", series("lanemq_group_reported", group="g"): "1x60"}, None),
    Case(
        "LaneMQParkedLanes",
        {of_group("lanemq_lanes", status="parked"): "1x60"},
        {"instance": "a", "group": "g", "topic": "T"},
    ),
    Case("LaneMQParkedLanes", {of_group("lanemq_lanes", status="held"): "1x60"}, None),
    Case("LaneMQDeadLetters", {DEAD: "3x100 4x20"}, {**HERE, "group": "g"}, 110),
    Case("LaneMQDeadLetters", {DEAD: "_x20 1x60"}, {**HERE, "group": "g"}),  # the first ones of a group
    Case("LaneMQDeadLetters", {DEAD: "3x200"}, None, 150),
    Case("LaneMQDeadLetters", {DEAD: "3x100 2x20"}, None, 110),  # discarded
    Case("LaneMQSlowDisk", buckets("lanemq_flush_seconds", 90, 10), {"instance": "a"}),
    Case("LaneMQSlowDisk", buckets("lanemq_flush_seconds", 1000, 1), None),
    Case("LaneMQLoopDelay", buckets("lanemq_loop_delay_seconds", 90, 10), {"instance": "a"}),
    Case("LaneMQLoopDelay", buckets("lanemq_loop_delay_seconds", 1000, 1), None),
    Case("LaneMQRefusals", {REFUSED: "0+120x60"}, {"instance": "a", "reason": "quota"}),
    Case("LaneMQRefusals", {REFUSED: "0+30x60"}, None),
    Case("LaneMQOwnersChange", {EXPIRED: "0+60x60"}, {"instance": "a"}),
    Case("LaneMQOwnersChange", {EXPIRED: "0+1x60"}, None),
]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def alerts_of(case: Case, severities: dict[str, str]) -> list[dict[str, Any]]:
    return [] if case.labels is None else [{"exp_labels": {**case.labels, "severity": severities[case.alert]}}]


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    names = [rule["alert"] for rule in rules()]
    assert [{case.labels is None for case in CASES if case.alert == name} for name in names] == [{True, False}] * len(
        names
    )
    assert {case.alert for case in CASES} == {*names}


def test_every_alert_says_what_to_do_and_the_guide_has_it_too() -> None:
    guide = (ROOT / "docs" / "guides" / "operate.md").read_text("utf-8")
    assert [rule["alert"] for rule in rules() if not rule["annotations"].get("action")] == []
    assert re.findall(r"^\| `(LaneMQ\w+)` \|", guide, re.MULTILINE) == [rule["alert"] for rule in rules()]


@pytest.fixture(scope="module")
def promtool() -> str:
    found = subprocess.run(["bash", str(ROOT / "scripts/promtool.sh")], capture_output=True, text=True, timeout=300)
    line = found.stdout.strip()
    if found.returncode:
        pytest.skip(line)
    return line


def check(promtool: str, folder: Path, groups: list[dict[str, Any]], tests: list[dict[str, Any]]) -> str:
    """The complaints of promtool about these tests of these rules; empty if there are none."""
    (folder / "rules.yml").write_text(json.dumps({"groups": [{"name": "lanemq", "rules": groups}]}))
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yml").write_text(json.dumps(document))
    done = subprocess.run(
        [promtool, "test", "rules", str(folder / "tests.yml")], capture_output=True, text=True, timeout=300
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def as_test(case: Case, severities: dict[str, str]) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{case.minute}m", "alertname": case.alert, "exp_alerts": alerts_of(case, severities)}
        ],
    }


@pytest.mark.extended
def test_alerts_fire_when_they_should_and_only_then(promtool: str, tmp_path: Path) -> None:
    """And the control: the opposite of each case is refused."""
    checked = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, timeout=300)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    plain = [{name: value for name, value in rule.items() if name != "annotations"} for rule in rules()]
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in plain}
    assert check(promtool, tmp_path, plain, [as_test(case, severities) for case in CASES]) == ""
    opposite = [case._replace(labels={} if case.labels is None else None) for case in CASES]
    complaints = check(promtool, tmp_path, plain, [as_test(case, severities) for case in opposite])
    assert complaints.count("alertname:") == len(CASES), complaints


@pytest.mark.extended
def test_prometheus_accepts_the_settings_of_the_guide(promtool: str, tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "guides" / "operate.md").read_text("utf-8")
    (settings,) = re.findall(r"^```yaml\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    assert "/etc/prometheus/lanemq-alerts.yml" in settings
    file = tmp_path / "prometheus.yml"
    file.write_text(settings.replace("/etc/prometheus/lanemq-alerts.yml", str(RULES)))
    checked = subprocess.run([promtool, "check", "config", str(file)], capture_output=True, text=True, timeout=300)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules())} rules found" in checked.stdout


@pytest.mark.extended
def test_the_texts_of_an_alert_name_what_it_is_about(promtool: str, tmp_path: Path) -> None:
    (rule,) = [rule for rule in rules() if rule["alert"] == "LaneMQGroupBehind"]
    case = as_test(Case("LaneMQGroupBehind", {BACKLOG: "400x60"}, GROUP), {"LaneMQGroupBehind": "warning"})
    (expected,) = case["alert_rule_test"][0]["exp_alerts"]
    expected["exp_annotations"] = {
        "summary": "Group g is 6m 40s behind in T.",
        "action": "`lanemq group describe g` shows its members; `lanemq why KEY` what a key waits for.",
    }
    assert check(promtool, tmp_path, [rule], [case]) == ""


def every_series() -> dict[str, str]:
    """One series of each metric, with its own name as the value of each label, that grows every minute."""
    found = {series(name): "0+5x60" for name in ("process_cpu_seconds_total", "process_resident_memory_bytes")}
    for metric in (*CATALOGUE, *COORDINATOR_CATALOGUE, *CONSUMER_CATALOGUE):
        labels = dict(zip(metric.labels, metric.labels, strict=True))
        if metric.kind is Kind.HISTOGRAM:
            for limit in ("0.1", "+Inf"):
                found[series(f"{metric.name}_bucket", **labels, le=limit)] = "0+5x60"
        else:
            found[series(metric.name, **labels)] = "1+5x60"
    return found


@pytest.mark.extended
def test_every_panel_of_the_dashboard_shows_something_and_its_legend_has_names(promtool: str, tmp_path: Path) -> None:
    groups, expected = [], []
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel["targets"]:
            name = f"Panel{panel['id']}{target['refId']}"
            text = target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".+")
            shown = re.findall(r"\{\{ ?(\w+) ?\}\}", target.get("legendFormat", ""))
            groups.append({"alert": name, "expr": f"count by ({', '.join(shown)}) ({text})"})
            labels = {label: "a" if label == "instance" else label for label in shown}
            expected.append({"eval_time": "30m", "alertname": name, "exp_alerts": [{"exp_labels": labels}]})
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in every_series().items()],
        "alert_rule_test": expected,
    }
    assert len(groups) > 20
    assert check(promtool, tmp_path, groups, [test]) == ""
