"""`lanemq doctor`: looks for what would stop or harm a broker or coordinator, in its folder or its database."""

import os
import resource
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import click

from lanemq._fast import VARIANT
from lanemq.cli.options import WrongUsage, json_option
from lanemq.cli.output import Grid, plural, show, size_text, time_text
from lanemq.cli.server.broker import count_users
from lanemq.cli.server.config import broker_context
from lanemq.clock import SystemClock, wall_time
from lanemq.core.brokering.disk_space import LowSpace, Space, log_limit
from lanemq.log.folder.checks import coordinator_in, is_read_only, refuse_backup
from lanemq.log.folder.examination import Examined, examine
from lanemq.log.retention import CLOCK_SLACK_MS, clock_problem
from lanemq.log.state.database import layout_problem
from lanemq.model.errors import InvalidOption, StorageError
from lanemq.net.security import key_problem
from lanemq.net.serving.certificate_end import certificate_end, end_problem
from lanemq.net.serving.descriptors import raise_soft_limit

FEW_FILES = 4096
"""Open files below which a broker with many clients or queues may run out of them."""


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    result: str
    """`ok`, `warning` or `PROBLEM`."""
    text: str


class DiskSettings(NamedTuple):
    """The broker's options about its disk, in bytes."""

    min_free: int
    retention: int
    segment: int


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def warning(check: str, text: str) -> Finding:
    return Finding(check, "warning", text)


def problem(check: str, text: str) -> Finding:
    return Finding(check, "PROBLEM", text)


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Data folder to examine; without it, the one of --config or LANEMQ_BROKER_DATA.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Settings of the broker: its free-space watermark and its size limit are what the disk is measured by.",
)
@click.option(
    "--state", metavar="POSTGRESQL-URL", help="Examine the database of coordinators instead of a data folder."
)
@click.option("--scan", is_flag=True, help="Also read and check every record; only while no broker runs.")
@json_option
def doctor(data: Path | None, config: Path | None, state: str | None, scan: bool, as_json: bool) -> None:
    """Examine a data folder and this machine, or a coordinator's database, and say what to do.

    Exit code 1 if there is a problem. Nothing is changed. A running broker is not disturbed. Without --config, the disk
    is measured by the environment (LANEMQ_BROKER_MIN_FREE_BYTES, LANEMQ_BROKER_RETENTION_BYTES) and the defaults.
    """
    findings = list(_of_folder(data, config, scan)) if state is None else _of_state(state)
    show(as_json, lambda: findings, Grid(("check", "result", "finding"), findings))
    if any(each.result == "PROBLEM" for each in findings):
        raise click.exceptions.Exit(1)


def _of_state(state: str) -> list[Finding]:
    from lanemq.cli.server.coordinator_state import state_findings  # needs psycopg

    return [ok("versions", _versions()), *(Finding(*each) for each in state_findings(state))]


def _of_folder(data: Path | None, config: Path | None, scan: bool) -> Iterator[Finding]:
    settings = broker_context([] if config is None else ["--config", str(config)]).params
    folder = data or settings["data"]
    if folder is None:
        raise WrongUsage("no data folder is given: use --data DIR, or --config FILE with the settings of the broker")
    sizes = DiskSettings(settings["min_free_bytes"], settings["retention_bytes"], settings["segment_bytes"])
    yield from _examined(folder, scan, sizes)
    yield from _access(settings)


def _examined(data: Path, scan: bool, sizes: DiskSettings) -> Iterator[Finding]:
    yield ok("versions", _versions())
    yield limits_finding(resource.getrlimit(resource.RLIMIT_NOFILE))
    raise_soft_limit()  # a scan opens every file of the log
    if not data.is_dir():
        yield problem("folder", f"{data} does not exist or is no folder: check --data; a broker would create it")
        return
    yield _folder(data)
    if not os.access(data, os.R_OK | os.X_OK):
        return
    space = _space(data)
    if isinstance(space, Finding):
        yield space
        return
    found = examine(data, scan=scan)
    if coordinator_in(data) is not None:
        yield running_finding(found)._replace(check="coordinator")
    else:
        yield space_finding(space, sizes)
        yield retention_finding(space, found.log_bytes, sizes)
        yield running_finding(found)
    for check in (files_finding, layout_finding, state_finding, clock_finding, damage_finding):
        finding = check(found)
        if finding is not None:
            yield finding


def _access(settings: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the file of users and the certificate of the settings can be used."""
    users, cert, key = settings["users"], settings["tls_cert"], settings["tls_key"]
    if users is not None:
        try:
            yield ok("users", f"{users} has {plural(count_users(users), 'user')}")
        except InvalidOption as error:
            yield problem("users", str(error))
    if cert is not None:
        yield certificate_finding(cert, key)
        if (text := key_problem(cert, key)) is not None:
            yield warning("private key", text)


def certificate_finding(cert: Path, key: Path | None) -> Finding:
    try:
        end = certificate_end(cert, key)
    except InvalidOption as error:
        return problem("certificate", str(error))
    now = SystemClock().wall()
    text = end_problem(end, now=now)
    if end is not None and text is not None:
        return (problem if end <= now else warning)("certificate", f"{cert}: {text}")
    until = "" if end is None else f", valid until {time_text(wall_time(end))}"
    return ok("certificate", f"{cert}{until}")


def _versions() -> str:
    python = ".".join(map(str, sys.version_info[:3]))
    return f"LaneMQ {version('lanemq')} ({VARIANT}), Python {python}, SQLite {sqlite3.sqlite_version}"


def _folder(data: Path) -> Finding:
    facts = data.stat()
    try:
        refuse_backup(data)
    except StorageError as error:
        return problem("folder", str(error))
    if is_read_only(data):
        return problem(
            "folder", f"{data} is on a read-only file system: look for its cause in dmesg, mount it writable"
        )
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        return problem("folder", f"{data} is not writable for this user (owner {facts.st_uid}): change its owner")
    if facts.st_mode & 0o007:
        return warning("folder", f"{data} can be opened by every user of this machine: chmod 750 {data}")
    return ok("folder", f"{data}, mode {facts.st_mode & 0o777:o}")


def files_finding(found: Examined) -> Finding | None:
    if found.log_problem is not None:
        return problem("files", f"{found.log_problem}: put them back, restore a backup, or start once with --recover")
    if not found.unusable:
        return None
    names = ", ".join(str(path) for path in sorted(found.unusable)[:3])
    more = f" and {len(found.unusable) - 3} more" if len(found.unusable) > 3 else ""
    return problem(
        "files", f"this user cannot read and write {names}{more}: run as the broker's user, or change the owner"
    )


def limits_finding(limits: tuple[int, int]) -> Finding:
    soft, hard = limits
    if 0 <= hard < FEW_FILES:
        return warning("limits", f"at most {hard} open files: raise the limit (LimitNOFILE=, ulimit -Hn)")
    return ok("limits", f"{soft} open files, up to {hard}; a broker raises the limit itself")


def _space(data: Path) -> Space | Finding:
    try:
        disk = shutil.disk_usage(data)
    except OSError as error:
        return problem("disk", f"the disk of {data} cannot be asked: {error.strerror}; look for its cause in dmesg")
    return Space(disk.free, disk.total)


def space_finding(space: Space, sizes: DiskSettings) -> Finding:
    if not space.total:
        return warning("disk", "this file system does not tell its size: sends stop when it is full, not before")
    low = LowSpace(sizes.min_free)
    low.look(space)
    limit = f"below {size_text(low.watermark())}" if low.watermark() else "when it is full"
    text = f"{size_text(space.free)} free of {size_text(space.total)}; sends stop {limit}"
    advice = "free some space, or shorten --retention or --retention-bytes"
    if low.low or not space.free:
        return problem("disk", f"{text}: a broker refuses them now; {advice}")
    if space.free < low.needed():
        return warning("disk", f"{text}, and continue only from {size_text(low.needed())}: {advice}")
    return ok("disk", text)


def retention_finding(space: Space, log_bytes: int, sizes: DiskSettings) -> Finding:
    """Whether the log reaches its size limit, at which the oldest messages are deleted, before sends stop."""
    if not space.total and not sizes.retention:
        return warning("retention", f"the log has {size_text(log_bytes)} and no size limit: set --retention-bytes")
    low = LowSpace(sizes.min_free)
    low.look(space)
    limit = log_limit(sizes.retention, sizes.segment, space.total)
    room = log_bytes + max(0, space.free - low.watermark())
    text = f"the log has {size_text(log_bytes)} and may grow to {size_text(limit)}"
    if limit <= room:
        return ok("retention", f"{text}, for which there is room")
    full = (
        f"{text}, but there is room for {size_text(room)}: before old messages are deleted for their size, sends stop"
    )
    if sizes.retention:
        return warning("retention", f"{full}; set --retention-bytes below that, or add space")
    return ok("retention", f"{full}; set --retention-bytes if you prefer to lose the oldest messages")


def running_finding(found: Examined) -> Finding:
    if found.holder is not None:
        return ok("broker", f"runs as process {found.holder}")
    return ok("broker", "does not run; it was killed before" if found.killed else "does not run; it was stopped")


def layout_finding(found: Examined) -> Finding | None:
    if found.layout is None:
        return None
    unknown = layout_problem(found.layout)
    if unknown is not None:
        return problem("layout", f"state.db {unknown}. Use that version")
    return ok("layout", str(found.layout))


def state_finding(found: Examined) -> Finding:
    if found.state_problem is not None:
        return problem("state", f"{found.state_problem}: restore a backup, or start once with --recover")
    known = f"{plural(found.topics, 'topic')}, {plural(found.groups, 'group')}"
    return ok("state", f"{known}, log {size_text(found.log_bytes)}")


def clock_finding(found: Examined, now: int | None = None) -> Finding | None:
    now = SystemClock().wall() if now is None else now
    if not found.last_store_time:
        return None
    newest = time_text(wall_time(found.last_store_time))
    if found.last_store_time > now + CLOCK_SLACK_MS:
        return problem("clock", f"the newest record is from {newest}, which is in the future: set this machine's clock")
    if (text := clock_problem(found.last_run, now)) is not None:
        return warning("clock", text)
    return ok("clock", f"the newest record known is from {newest}")


def damage_finding(found: Examined) -> Finding:
    scanned = "" if found.scanned is None else f"; {plural(found.scanned, 'record')} read"
    if found.damage:
        places = ", ".join(f"{row.position} ({row.length} bytes: {row.reason})" for row in found.damage[:5])
        return problem(
            "records",
            f"{plural(len(found.damage), 'damaged place')} in the log: {places}{scanned}; they are skipped",
        )
    if found.scan_problem is not None:
        return warning("records", f"not scanned: {found.scan_problem}{scanned}")
    torn = f"; {plural(found.torn_files, 'torn end')} kept in torn/" if found.torn_files else ""
    return ok("records", f"no damage is known{torn}{scanned}")
