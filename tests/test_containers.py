"""The files of containers fit the program: commands and health checks run as processes, options and paths exist.

No container engine is needed. What an engine would do beyond that (layers, volumes, the network) is not tried here.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from tests.documents import ROOT

from lanemq.cli.server.broker import broker
from lanemq.cli.server.console import console
from lanemq.cli.server.coordinator import coordinator

DEPLOY = ROOT / "deploy"
SECONDS = 60.0
BROKER_READY = re.compile(r"LaneMQ \S+ on 0\.0\.0\.0:(\d+).*?0\.0\.0\.0:(\d+)", re.DOTALL)


def instructions(stage: str) -> dict[str, list[str]]:
    """ENTRYPOINT, CMD and the command of HEALTHCHECK of a stage."""
    text = (DEPLOY / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    (body,) = re.findall(rf"^FROM \S+ AS {stage}$(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL)
    found = re.findall(r"^(ENTRYPOINT|CMD|HEALTHCHECK [^\[]*CMD|USER) +(\[.*\]|\S+)$", body, re.MULTILINE)
    return {name.split()[0]: json.loads(value) if value.startswith("[") else [value] for name, value in found}


def of_kind(file: str, kind: str) -> Any:
    documents = yaml.safe_load_all((DEPLOY / f"kubernetes-{file}").read_text("utf-8"))
    return next(each for each in documents if each["kind"] == kind)


def container(file: str, kind: str) -> Any:
    (found,) = of_kind(file, kind)["spec"]["template"]["spec"]["containers"]
    return found


COORDINATORS = yaml.safe_load((DEPLOY / "compose-coordinators.yaml").read_text("utf-8"))["services"]
GIVEN = ["--cluster=ns1:9876", "--state=postgresql://postgres/lanemq"]
"""What the environment of the containers gives."""
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]


def words_here(words: list[str], folder: Path) -> list[str]:
    """The words with the test's folder, and with ports that the system chooses."""
    return [re.sub(r"^/data", str(folder), re.sub(r"^(0\.0\.0\.0):\d+$", r"\1:0", word)) for word in words]


@contextmanager
def started(words: list[str], ready: re.Pattern[str], folder: Path) -> Iterator[tuple[re.Match[str], Any]]:
    """The process of a container, until its output matches; it then must end with 0 on SIGTERM, as engines stop it."""
    log = folder / f"{words[0]}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "lanemq.cli.main", *words], stdout=out, stderr=out, cwd=folder
        )
    try:
        end = time.monotonic() + SECONDS
        while (found := ready.search(log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield found, process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0, log.read_text()


def is_healthy(check: list[str], port: str) -> bool:
    """Runs a health check of an image, at the port of the test."""
    words = [re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", word) for word in check]
    assert words[0] == "python"
    return subprocess.run([sys.executable, *words[1:]], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_the_image_starts_a_broker_that_its_health_check_and_the_console_find(tmp_path: Path) -> None:
    image = instructions("broker")
    assert image["ENTRYPOINT"] == ["lanemq"]
    command = words_here(image["CMD"], tmp_path)
    console_words = words_here(COMPOSE["console"]["command"], tmp_path)
    with started(command, BROKER_READY, tmp_path) as (ports, process):
        assert is_healthy(image["HEALTHCHECK"], ports[2])
        console_words[console_words.index("--server") + 1] = f"127.0.0.1:{ports[1]}"
        with started(console_words, re.compile(r"LaneMQ console on http://\S+?:(\d+)"), tmp_path) as (page, _):
            assert is_healthy(COMPOSE["console"]["healthcheck"]["test"][1:], page[1])
        os.kill(process.pid, signal.SIGSTOP)
        assert not is_healthy(image["HEALTHCHECK"], ports[2]), "a frozen broker"
        os.kill(process.pid, signal.SIGCONT)
    assert not is_healthy(image["HEALTHCHECK"], ports[2]), "a stopped broker"


def test_no_image_runs_as_root_and_every_file_system_is_read_only() -> None:
    for stage in ("broker", "spark"):
        assert instructions(stage)["USER"] == ["10001:10001"]
    for service in ("broker", "console"):
        assert COMPOSE[service]["read_only"] is True
        assert COMPOSE[service]["cap_drop"] == ["ALL"]
    for service in ("coordinator-one", "coordinator-two"):
        assert COORDINATORS[service]["read_only"] is True
        assert COORDINATORS[service]["cap_drop"] == ["ALL"]
    for file, kind in (
        ("broker.yaml", "StatefulSet"),
        ("coordinators.yaml", "StatefulSet"),
        ("consumers.yaml", "Deployment"),
    ):
        pod = of_kind(file, kind)["spec"]["template"]["spec"]["securityContext"]
        assert (pod["runAsNonRoot"], pod["runAsUser"]) == (True, 10001)
        assert container(file, kind)["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_options_of_every_command_exist() -> None:
    for words, command in (
        (instructions("broker")["CMD"], broker),
        (container("broker.yaml", "StatefulSet")["args"], broker),
        (COMPOSE["console"]["command"], console),
        *((COORDINATORS[name]["command"] + GIVEN, coordinator) for name in ("coordinator-one", "coordinator-two")),
        (container("coordinators.yaml", "StatefulSet")["args"] + GIVEN[2:], coordinator),
    ):
        assert words[0] == command.name
        assert isinstance(command.make_context(words[0], words[1:]), click.Context)
    settings = {f"LANEMQ_BROKER_{name.upper()}" for name in (each.name or "" for each in broker.params)}
    assert COMPOSE["broker"]["environment"].keys() <= settings
    settings = {f"LANEMQ_COORDINATOR_{name.upper()}" for name in (each.name or "" for each in coordinator.params)}
    assert COORDINATORS["coordinator-one"]["environment"].keys() <= settings
    pod = {each["name"] for each in container("coordinators.yaml", "StatefulSet")["env"]}
    assert pod - {"POD_NAME"} <= settings


def test_ports_paths_and_names_agree() -> None:
    pod, service = container("broker.yaml", "StatefulSet"), of_kind("broker.yaml", "Service")
    ports = {port["name"]: port["containerPort"] for port in pod["ports"]}
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    arguments = dict(word.removeprefix("--").split("=", 1) for word in pod["args"] if "=" in word)
    assert arguments["listen"] == f"0.0.0.0:{ports['messages']}"
    assert arguments["monitor"] == f"0.0.0.0:{ports['monitor']}"
    assert arguments["advertise"] == service["metadata"]["name"], "clients come through the service"
    assert pod["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert pod["livenessProbe"]["httpGet"]["path"] == "/live"
    (place,) = [mount["mountPath"] for mount in pod["volumeMounts"] if mount["name"] == "messages"]
    assert arguments["data"].startswith(f"{place}/"), "the root of a volume may hold lost+found"
    stateful = of_kind("broker.yaml", "StatefulSet")["spec"]
    assert stateful["replicas"] == 1
    for file, kind in (("broker.yaml", "StatefulSet"), ("consumers.yaml", "Deployment")):
        labels = of_kind(file, kind)["spec"]["template"]["metadata"]["labels"]
        assert of_kind(file, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    for service_name in ("prometheus", "grafana"):
        for volume in COMPOSE[service_name]["volumes"]:
            if volume.startswith("./"):
                assert (DEPLOY / volume.split(":")[0]).is_file()
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    assert f'up{{job="{job["job_name"]}"}}' in (DEPLOY / "prometheus-alerts.yml").read_text("utf-8")


def test_two_coordinators_have_names_under_which_members_reach_each() -> None:
    pod, service = container("coordinators.yaml", "StatefulSet"), of_kind("coordinators.yaml", "Service")
    arguments = dict(word.removeprefix("--").split("=", 1) for word in pod["args"] if "=" in word)
    assert arguments["advertise"] == f"$(POD_NAME).{service['metadata']['name']}"
    stateful = of_kind("coordinators.yaml", "StatefulSet")["spec"]
    assert (stateful["replicas"], stateful["serviceName"]) == (2, service["metadata"]["name"])
    ports = {port["name"]: port["containerPort"] for port in pod["ports"]}
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    assert arguments["listen"] == f"0.0.0.0:{ports['groups']}"
    assert arguments["monitor"] == f"0.0.0.0:{ports['monitor']}"
    for name in ("coordinator-one", "coordinator-two"):
        command = COORDINATORS[name]["command"]
        assert command[command.index("--advertise") + 1] == name
    labels = stateful["template"]["metadata"]["labels"]
    assert of_kind("coordinators.yaml", "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_accepts_the_dockerfile() -> None:
    checked = subprocess.run(["hadolint", DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert checked.stdout + checked.stderr == ""
