"""The files of deploy/ fit the program: metrics exist, settings are accepted, the unit is valid."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from lanemq.broker.monitor.catalogue import CATALOGUE
from lanemq.cli.server.broker import broker
from lanemq.cli.server.coordinator import coordinator
from lanemq.cli.settings import option_names, read_settings
from lanemq.client.metrics import CONSUMER_CATALOGUE, PRODUCER_CATALOGUE
from lanemq.coordinator.figures import COORDINATOR_CATALOGUE
from lanemq.model.figures import Kind

DEPLOY = Path(__file__).parents[1] / "deploy"
METRICS = {
    metric.name: metric for metric in (*CATALOGUE, *COORDINATOR_CATALOGUE, *CONSUMER_CATALOGUE, *PRODUCER_CATALOGUE)
}


def series_of(name: str) -> str:
    """The metric of a series: histograms have three."""
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return base if base in METRICS and METRICS[base].kind is Kind.HISTOGRAM else name


@pytest.mark.parametrize("file", ["grafana-dashboard.json", "prometheus-alerts.yml"])
def test_dashboard_and_alerts_use_metrics_and_labels_that_exist(file: str) -> None:
    text = (DEPLOY / file).read_text("utf-8").replace('\\"', '"')
    used = {series_of(name) for name in re.findall(r"lanemq_\w+", text)}
    assert used
    assert sorted(used - METRICS.keys()) == []
    labels = {label for metric in METRICS.values() for label in metric.labels} | {"instance", "le", "job"}
    grouped = {label.strip() for found in re.findall(r"(?:by|on) \(([^)]+)\)", text) for label in found.split(",")}
    shown = set(re.findall(r"\{\{ ?(?:\$labels\.)?([a-z]+) ?\}\}", text))
    assert sorted((grouped | shown) - labels) == []


def test_the_check_finds_a_metric_that_does_not_exist() -> None:
    assert series_of("lanemq_lag_seconds_bucket") not in METRICS, "a gauge has no buckets"
    assert series_of("lanemq_flush_seconds_bucket") in METRICS


def test_the_dashboard_is_complete() -> None:
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    assert all(
        target["expr"].count("(") == target["expr"].count(")") for panel in panels for target in panel["targets"]
    )


SERVERS = [(broker, "lanemq", "127.0.0.1:9876"), (coordinator, "lanemq-coordinator", "127.0.0.1:9873")]


@pytest.mark.parametrize(("server", "file", "listen"), SERVERS)
def test_the_settings_file_is_accepted(server: click.Command, file: str, listen: str) -> None:
    path = DEPLOY / f"{file}.toml"
    commented = re.findall(r"^# ([\w-]+) = ", path.read_text("utf-8"), re.MULTILINE)
    known = option_names(server)
    assert [name for name in commented if name.replace("-", "_") not in known] == []
    assert read_settings(path, server)["listen"] == listen
    context = server.make_context(str(server.name), ["--config", str(path)])
    assert context.params["log_format"] == "json"
    assert isinstance(context, click.Context)


@pytest.mark.parametrize(("server", "file", "_"), SERVERS)
def test_the_unit_starts_the_server_with_options_that_exist(server: click.Command, file: str, _: str) -> None:
    unit = (DEPLOY / f"{file}.service").read_text("utf-8")
    (command,) = re.findall(rf"^ExecStart=\S+/lanemq {server.name} (.+)$", unit, re.MULTILINE)
    flags = re.findall(r"--[\w-]+", command)
    assert "ExecReload=/bin/kill -HUP $MAINPID" in unit
    state = re.findall(r"^StateDirectory=(\S+)$", unit, re.MULTILINE)
    assert read_settings(DEPLOY / f"{file}.toml", server)["data"] == f"/var/lib/{state[0]}"
    names = {option for each in server.params for option in each.opts}
    assert flags
    assert [flag for flag in flags if flag not in names] == []


def test_the_guide_the_unit_and_the_files_name_the_same_places() -> None:
    guide = (DEPLOY.parent / "docs" / "guides" / "operate.md").read_text("utf-8")
    unit = dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / "lanemq.service").read_text("utf-8"), re.MULTILINE))
    program, _, _, config = unit["ExecStart"].split()
    user, folder = unit["User"], f"/var/lib/{unit['StateDirectory']}"
    settings = read_settings(DEPLOY / "lanemq.toml", broker)
    assert settings["data"] == folder, "the only folder that the unit lets it write to"
    for step in (
        f"ln -s /opt/lanemq/bin/lanemq {program}\n",
        f"--home-dir {folder} --shell /usr/sbin/nologin {user}\n",
        f"-g {unit['Group']} -m 0640 deploy/lanemq.toml {config}\n",
        "deploy/lanemq.service /etc/systemd/system/lanemq.service\n",
        "sudo systemctl daemon-reload\n",
        f"sudo -u {user} lanemq doctor --config {config}\n",
        f"sudo -u {user} lanemq backup /var/backups/lanemq/monday --data {folder}\n",
        f"sudo install -d -o {user} -g {unit['Group']} -m {unit['StateDirectoryMode']} {folder}\n",
        f"sudo -u {user} lanemq restore /var/backups/lanemq/monday --data {folder}\n",
        f'- targets: ["{settings["monitor"]}"]\n',
    ):
        assert step in guide
    (job,) = re.findall(r"job_name: (\S+)", guide)
    assert f'up{{job="{job}"}}' in (DEPLOY / "prometheus-alerts.yml").read_text("utf-8")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("file", ["lanemq", "lanemq-coordinator"])
def test_systemd_accepts_the_unit(tmp_path: Path, file: str) -> None:
    """The program and its user need not exist here."""
    unit = (DEPLOY / f"{file}.service").read_text("utf-8")
    program = shutil.which("true")
    unit = re.sub(r"^ExecStart=\S+", f"ExecStart={program}", unit, flags=re.MULTILINE)
    unit = re.sub(r"^(User|Group)=.*$", r"\1=root", unit, flags=re.MULTILINE)
    path = tmp_path / "lanemq.service"
    path.write_text(unit)
    checked = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=120)
    complaints = [line for line in checked.stderr.splitlines() if path.name in line]
    assert complaints == []
