"""The reference pages for options, metrics and errors have what the code has, and nothing else.

Beside names and help texts, pages have what a person wrote: units, and what goes wrong at either end.
"""

import importlib
import re
from copy import copy
from dataclasses import fields

import click
import pytest
from click.testing import CliRunner
from tests.documents import ROOT

from lanemq.broker.body_limits import _LIMITS, SMALL_BODY
from lanemq.broker.monitor.catalogue import CATALOGUE
from lanemq.cli.main import main
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.metrics import CONSUMER_CATALOGUE, PRODUCER_CATALOGUE
from lanemq.client.producer.options import ProducerOptions
from lanemq.coordinator.figures import COORDINATOR_CATALOGUE
from lanemq.core.brokering import dedup
from lanemq.core.brokering.quotas import Quota
from lanemq.core.consuming.flow_control import FlowLimits
from lanemq.core.consuming.queue_lease import LeaseTimes
from lanemq.core.finished_ranges import MAX_RANGES
from lanemq.core.lane_status import MAX_PARKED
from lanemq.effects.transaction import OnceOptions
from lanemq.grpc_front.figures import FRONT_CATALOGUE
from lanemq.model import names
from lanemq.net.serving import peer
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import MAX_FRAME_BYTES

REFERENCE = ROOT / "docs" / "reference"
OPTIONS = (REFERENCE / "options.md").read_text("utf-8")
LIMITS = (ROOT / "docs" / "developers" / "limits.md").read_text("utf-8")


def section(text: str, title: str) -> str:
    return re.split(r"^## ", text.split(f"## {title}\n")[1], flags=re.MULTILINE)[0]


def first_cells(text: str) -> list[str]:
    """The names in the first column of the tables of a section."""
    return re.findall(r"^\| `([\w-]+)", text, re.MULTILINE)


def broker_rows(*, hidden: bool) -> list[str]:
    """The table of the options of `lanemq broker` that its help shows, or of those that it leaves out. If the test
    fails, put this into the page."""
    command = main.get_command(click.Context(main), "broker")
    assert command is not None
    options = [copy(each) for each in command.params if isinstance(each, click.Option) and each.hidden == hidden]
    for each in options:
        each.hidden = False
    found = [each.get_help_record(click.Context(command)) for each in options]
    rows = ["| option | means |", "|---|---|"]
    for name, text in filter(None, found):
        if "--help" not in name:
            written = re.sub(r"\s+\[(default: .*?|required)\]$", r" (\1)", text)
            rows.append(f"| `{name.replace('|', chr(92) + '|')}` | {written} |")
    return rows


def test_the_page_of_options_has_every_option_of_a_broker_as_its_help_says() -> None:
    for title, hidden in (("Brokers: options", False), ("Brokers: options that few need", True)):
        shown = [line for line in section(OPTIONS, title).splitlines() if line.startswith("|")]
        assert shown == broker_rows(hidden=hidden)


def set_by_somebody() -> dict[str, str]:
    """By option: the page, under docs, on which somebody sets it."""
    text = section(OPTIONS, "Who sets which option")
    rows = re.findall(r"^\| (`.*?) \| .* \| \[.*?\]\(\.\./([\w/-]+\.md)", text, re.MULTILINE)
    return {name: page for names, page in rows for name in re.findall(r"`([\w-]+)`", names)}


def test_every_option_is_set_by_somebody_in_a_guide() -> None:
    found = set_by_somebody()
    declared = {each.name for each in (*fields(ConsumerOptions), *fields(ProducerOptions))}
    hidden = {re.split(r"[` ]", row)[2].removeprefix("--") for row in broker_rows(hidden=True)[2:]}
    assert found.keys() == declared - {"servers", "group", "clock"} | hidden
    for name, page in found.items():
        text = (ROOT / "docs" / page).read_text("utf-8")
        assert re.search(rf"\b{name}\b", text), f"{page} does not name {name}"


def test_the_help_of_the_broker_fits_on_one_screen() -> None:
    result = CliRunner().invoke(main, ["broker", "--help"], terminal_width=80)
    assert len(result.output.splitlines()) <= 40


def test_the_other_tables_name_only_options_that_a_broker_has() -> None:
    known = {re.split(r"[` ]", row)[2] for hidden in (False, True) for row in broker_rows(hidden=hidden)[2:]}
    titles = ("Brokers: limits", "Brokers: parked lanes")
    parts = [*(section(OPTIONS, title) for title in titles), LIMITS]
    named = {name for text in parts for row in re.findall(r"^\| (`--.*?) \|", text, re.MULTILINE)
             for name in re.findall(r"--[\w-]+", row)}  # fmt: skip
    assert len(named) == 4
    assert named - known == set()


INTERNAL = {
    "audit": {"MAX_ADDRESSES", "MAX_CHARS", "MAX_UNKNOWN_CHARS"},
    "checkpoints": {"MAX_POSTPONED_TICKS"},
    "dedup": {"MAX_SEQUENCE_RANGES"},
    "group_rules": {"MAX_COPIED_BYTES"},
    "delay": {"MAX_RETRIES", "MAX_STEP_MS"},
    "delays": {"MAX_BYTES", "MAX_MESSAGES"},
    "disk_space": {"MAX_SHARE"},
    "disk_thread": {"MAX_ROW_JOBS"},
    "figures": {"MAX_TIMES"},
    "health": {"MAX_SILENCE_MS"},
    "group_housekeeping": {"MAX_LINES"},
    "housekeeping": {"MAX_FORGOTTEN"},
    "index_rebuilding": {"MAX_UNFILED_BYTES"},
    "lock_table": {"MAX_LOOKS"},
    "locks": {"MAX_FINISHED_CHARS", "MAX_LINES", "MAX_QUEUE_ID"},
    "long_poll": {"MAX_HELD"},
    "operator_parking": {"MAX_LIST_CHARS", "MAX_RUN", "MAX_SHOWN", "MAX_SHOWN_BYTES"},
    "owner_parking": {"MAX_ATTEMPTS", "MAX_GIVEN_BYTES"},
    "pinning": {"MAX_COPIED", "MAX_COPIED_BYTES"},
    "progress_keeper": {"MAX_OFFSETS"},
    "queue_seen": {"MAX_MARKS", "MAX_NUMBER", "MAX_PRODUCERS", "MAX_PRODUCER_CHARS", "MAX_STAMPS"},
    "rate_limited_log": {"MAX_TEXTS"},
    "send": {"MAX_ANSWERED_IDS"},
    "membership": {"MAX_LOOKS"},
    "server": {"MAX_ACCEPTED", "MAX_CLOSED", "MAX_LOOKS"},
    "unread": {"MAX_ROUNDS"},
    "waking": {"MAX_TAG_CODES"},
}
"""Constants that no client meets: steps of work, sizes of answers that continue with the next request, defaults of
options. A new limit is in the page, or here."""

OTHERS = {
    "body_limits.SMALL_BODY": SMALL_BODY,
    "command.MAX_FRAME_BYTES": MAX_FRAME_BYTES,
    "dedup.CAPACITY": dedup.CAPACITY,
    "finished_ranges.MAX_RANGES": MAX_RANGES,
    "lane_status.MAX_PARKED": MAX_PARKED,
    "names.MAX_GROUP_CHARS": names.MAX_GROUP_CHARS,
    "names.MAX_TOPIC_CHARS": names.MAX_TOPIC_CHARS,
    "peer.CROWDED_BYTES": peer.CROWDED_BYTES,
    "peer.WRITE_HIGH_WATER_BYTES": peer.WRITE_HIGH_WATER_BYTES,
}
"""Limits with other names, or in modules that have no other limit of a broker."""


def fixed_limits() -> dict[str, int]:
    """Every limit of a broker that has no option, by its name in the code."""
    limits = [(f"quotas.{quota.name}", quota.value) for quota in Quota]
    found = {f"{name}.of_party": limit.of_party for name, limit in limits if limit.of_party is not None}
    found |= {f"{name}.of_connection": limit.of_connection for name, limit in limits if limit.of_connection is not None}
    found |= {f"body_limits.{RequestCode(code).name}": value for code, value in _LIMITS.items()} | OTHERS
    serving = [f"net/serving/{name}.py" for name in ("peer", "server", "monitor", "descriptors")]
    used = ("broker/**/*.py", "core/brokering/**/*.py", *serving, "net/rate_limited_log.py")
    for path in sorted(path for pattern in used for path in (ROOT / "src" / "lanemq").glob(pattern)):
        module = path.stem
        for name in re.findall(r"^((?:MAX|MIN)_[A-Z_]+)\b", path.read_text("utf-8"), re.MULTILINE):
            if name not in INTERNAL.get(module, ()):
                dotted = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
                found[f"{module}.{name}"] = getattr(importlib.import_module(dotted), name)
    return found


def test_the_page_of_limits_has_every_fixed_limit_with_its_value() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| ([\d,]+)(?:, at least)? \| .* \| `([\w.]+)` \|$",
        LIMITS,
        re.MULTILINE,
    )
    shown = {name: int(value.replace(",", "")) for value, name in rows}
    assert len(shown) == len(rows)
    assert shown == fixed_limits()


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
        for each in (
            *CATALOGUE,
            *COORDINATOR_CATALOGUE,
            *CONSUMER_CATALOGUE,
            *PRODUCER_CATALOGUE,
            *pipelines,
            *FRONT_CATALOGUE,
        )
    ]
    page = (REFERENCE / "metrics.md").read_text("utf-8").splitlines()
    assert [line for line in page if line.startswith("| `lanemq_")] == rows


def test_the_page_of_errors_has_every_error_and_nothing_else() -> None:
    public = importlib.import_module("lanemq.errors")
    page = (REFERENCE / "errors.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`([A-Z]\w+)`", row)}
    assert named == {*public.__all__} - {"LaneError"}
