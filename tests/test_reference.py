"""The reference pages for options, metrics and errors have what the code has, and nothing else.

Beside names and help texts, pages have what a person wrote: units, and what goes wrong at either end.
"""

import importlib
import re
from dataclasses import fields

import click
import pytest
from tests.documents import ROOT

from lanemq.broker.monitor.catalogue import CATALOGUE
from lanemq.cli.main import main
from lanemq.client.metrics import CONSUMER_CATALOGUE, PRODUCER_CATALOGUE
from lanemq.core.consuming.flow_control import FlowLimits
from lanemq.core.consuming.queue_lease import LeaseTimes
from lanemq.effects.transaction import OnceOptions

REFERENCE = ROOT / "docs" / "reference"
OPTIONS = (REFERENCE / "options.md").read_text("utf-8")


def section(text: str, title: str) -> str:
    return re.split(r"^## ", text.split(f"## {title}\n")[1], flags=re.MULTILINE)[0]


def first_cells(text: str) -> list[str]:
    """The names in the first column of the tables of a section."""
    return re.findall(r"^\| `([\w-]+)", text, re.MULTILINE)


def broker_rows() -> list[str]:
    """The table of all options of `lanemq broker`, from its help. If the test fails, put this into the page."""
    command = main.get_command(click.Context(main), "broker")
    assert command is not None
    found = [each.get_help_record(click.Context(command)) for each in command.params if isinstance(each, click.Option)]
    rows = ["| option | means |", "|---|---|"]
    for name, text in filter(None, found):
        if "--help" not in name:
            written = re.sub(r"\s+\[(default: .*?|required)\]$", r" (\1)", text)
            rows.append(f"| `{name.replace('|', chr(92) + '|')}` | {written} |")
    return rows


def test_the_page_of_options_has_every_option_of_a_broker_as_its_help_says() -> None:
    shown = [line for line in section(OPTIONS, "Brokers: every option").splitlines() if line.startswith("|")]
    assert shown == broker_rows()


def test_the_other_tables_name_only_options_that_a_broker_has() -> None:
    known = {re.split(r"[` ]", row)[2] for row in broker_rows()[2:]}
    commands = section((REFERENCE / "command-line.md").read_text("utf-8"), "The broker")
    parts = [section(OPTIONS, title) for title in ("Brokers: limits", "Brokers: parked lanes")]
    named = {name for text in (*parts, commands) for row in re.findall(r"^\| (`--.*?) \|", text, re.MULTILINE)
             for name in re.findall(r"--[\w-]+", row)}  # fmt: skip
    assert len(named) > 15
    assert named - known == set()


def test_the_page_of_options_has_every_field_of_lease_times_flow_limits_and_effects() -> None:
    leases = section(OPTIONS, "Lease times and flow limits")
    assert first_cells(leases) == [each.name for each in fields(LeaseTimes)]
    for kind in (LeaseTimes, FlowLimits):
        written = re.search(rf"`{kind.__name__}\((.*?)\)`", leases)
        assert written is not None
        assert re.findall(r"(\w+)=", written[1]) == [each.name for each in fields(kind)]
    assert {*first_cells(section(OPTIONS, "Effects"))} == {*OnceOptions.__annotations__} - {"clock"}


def test_the_page_of_metrics_has_every_metric_and_nothing_else() -> None:
    pipelines = pytest.importorskip("lanemq.pipelines.running.monitor").PIPELINE_CATALOGUE
    rows = [
        f"| `{each.name}` | {each.kind.value} | {', '.join(each.labels)} | {each.help} |"
        for each in (*CATALOGUE, *CONSUMER_CATALOGUE, *PRODUCER_CATALOGUE, *pipelines)
    ]
    page = (REFERENCE / "metrics.md").read_text("utf-8").splitlines()
    assert [line for line in page if line.startswith("| `lanemq_")] == rows


def test_the_page_of_errors_has_every_error_and_nothing_else() -> None:
    public = importlib.import_module("lanemq.errors")
    page = (REFERENCE / "errors.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`([A-Z]\w+)`", row)}
    assert named == {*public.__all__} - {"LaneError"}
