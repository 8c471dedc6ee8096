"""`lanemq status`: the health of every broker and the lag of every group on one screen."""

import re
from collections.abc import Iterator

import click
import msgspec

from lanemq.cli.options import asks_server
from lanemq.cli.output import NONE, Grid, Part, duration_text, plural, show, size_text
from lanemq.cli.security import ConnectingCommand
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.coordinated import CoordinatedAdmin, leader_note
from lanemq.client.admin.views import BrokerFigures
from lanemq.model.errors import BrokerRefused, TransportError
from lanemq.model.names import RETRY_PREFIX
from lanemq.net.serving.certificate_end import RENEW, SOON_MS
from lanemq.wire.lane_bodies import LeaderAnswer

MAX_GROUPS = 15
"""Rows of the table of groups: those that are most behind."""
MAX_LOST = 3
"""Groups and topics that are named of those that lost messages."""


@click.command(cls=ConnectingCommand)
@asks_server
def status(server: str, as_json: bool) -> None:
    """Show on one screen whether the brokers are healthy, and how far every group is behind.

    The figures are those of the monitor's /metrics. Exit code 1 if a broker takes no messages.
    """
    with Admin(server) as admin:
        brokers = admin.figures()
    with CoordinatedAdmin(server) as admin_of_groups:
        leader = _leader(admin_of_groups)
    parts = [part for each in brokers for part in screen(each)]
    show(
        as_json,
        lambda: [*map(_document, brokers), *([] if leader is None else [_leader_document(leader)])],
        *parts,
        *([] if leader is None else [leader if isinstance(leader, str) else leader_text(leader)]),
    )
    if any(each.number("lanemq_ready") == 0 for each in brokers):
        raise click.exceptions.Exit(1)


def _document(broker: BrokerFigures) -> dict[str, object]:
    return {
        "broker": broker.broker,
        "address": broker.address,
        "lanemq": broker.lane,
        "replicas": broker.replicas,
        "figures": broker.table,
    }


def _leader(admin: CoordinatedAdmin) -> LeaderAnswer | str | None:
    """The coordinator that leads, or why there is none although groups need one; None without coordinated groups."""
    try:
        return admin.leader()
    except TransportError as error:
        return f"COORDINATOR: none leads, so coordinated groups wait: {error}"
    except BrokerRefused as error:
        return f"coordinator: {error}"


def _leader_document(leader: LeaderAnswer | str) -> dict[str, object]:
    return {"coordinator": leader if isinstance(leader, str) else msgspec.to_builtins(leader)}


def leader_text(leader: LeaderAnswer) -> str:
    """Who coordinates groups."""
    others = "others take over" if leader.shared else "no other one takes over"
    took = f", the last change took {leader.write_millis} ms" if leader.write_millis else ""
    led = duration_text(leader.leads_millis)
    return f"coordinator at {leader.address}, leads for {led}, {others}{leader_note(leader)}{took}"


def screen(broker: BrokerFigures) -> Iterator[Part]:
    """What is shown of one broker."""
    kind = broker.table.get("brokerVersionDesc", "?") if not broker.lane else "LaneMQ"
    yield f"broker {broker.broker} at {broker.address}, {kind}, up {uptime_text(broker.table.get('runtime', ''))}"
    yield Grid(("", ""), [(name, text) for name, text in _lines(broker) if text])
    groups = _groups(broker)
    if broker.lane:
        yield Grid(
            ("group", "topic", "lag", "behind", "members", "held", "parked"),
            groups[:MAX_GROUPS],
            "no group has committed an offset",
        )
    else:
        yield f"{broker.broker} does not report how far groups are behind: see lanemq group list"
    if len(groups) > MAX_GROUPS:
        yield f"and {plural(len(groups) - MAX_GROUPS, 'more row')} with less lag: lanemq group list"


def uptime_text(runtime: str) -> str:
    """The two largest units of RocketMQ's text, `[ 0 days, 2 hours, 5 minutes, 7 seconds ]`: "2 hours, 5 minutes"."""
    units = [(int(count), unit) for count, unit in re.findall(r"(\d+) (day|hour|minute|second)s?", runtime)]
    while len(units) > 1 and not units[0][0]:
        del units[0]
    return ", ".join(plural(count, unit) for count, unit in units[:2] if count) or ("0 seconds" if units else NONE)


def _lines(broker: BrokerFigures) -> Iterator[tuple[str, str]]:
    """Name and text of each line. An Apache broker reports only rates and its disk."""
    rates = {name: broker.table.get(name, "").split()[1:2] for name in ("putTps", "getTransferredTps")}
    if broker.lane:
        yield "health", _health(broker)
    known = [f"{float(rate[0]):,.1f}/s {way}" for way, rate in zip(("in", "out"), rates.values(), strict=True) if rate]
    # An Apache broker has no rates in its first minute.
    yield "messages", f"{', '.join(known)} in the last minute" if known else ""
    if not broker.lane:
        yield "copies", _copies(broker)
        yield "disk", broker.table.get("commitLogDirCapacity", "")
        return
    yield "disk", _disk(broker)
    yield "latency", _latencies(broker)
    yield "clients", _clients(broker)
    yield "CERTIFICATE", _certificate(broker)
    changes = broker.series("lanemq_lease_changes_total")
    stale = broker.number("lanemq_stale_requests_total") or 0
    yield (
        "leases",
        ", ".join(f"{count:.0f} {change}" for (change,), count in changes.items())
        + (f"; {stale:.0f} requests of former owners refused"),
    )
    yield "lanes", _lanes(broker)
    yield "LOST", _lost(broker)


def _certificate(broker: BrokerFigures) -> str:
    """When the certificate expires, if that is soon; else empty."""
    left = broker.number("lanemq_certificate_seconds")
    if left is None or left * 1000 > SOON_MS:
        return ""
    if not left:
        return f"expired: clients refuse it; {RENEW}"
    return f"expires in {duration_text(left * 1000)}, then clients refuse it; {RENEW}"


def _lost(broker: BrokerFigures) -> str:
    """Messages that retention deleted too early for a group; empty if there are none."""
    found = {key: count for key, count in broker.series("lanemq_unread_deleted_total").items() if count}
    if not found:
        return ""
    most = sorted(found.items(), key=lambda row: (-row[1], row[0]))[:MAX_LOST]
    named = ", ".join(f"{group} {count:.0f} of {topic}" for (group, topic), count in most)
    more = f" and {plural(len(found) - MAX_LOST, 'more group')}" if len(found) > MAX_LOST else ""
    return f"retention deleted messages before groups had read them, since the broker's start: {named}{more}"


def _copies(broker: BrokerFigures) -> str:
    if not broker.replicas:
        return "1: the name servers know no replica, so this disk is the only copy"
    return f"{broker.replicas + 1}: the master and {plural(broker.replicas, 'replica')}, which may lag behind"


def _health(broker: BrokerFigures) -> str:
    reason = broker.table.get("laneReadOnly", "false")
    if reason != "false":
        return f"READ-ONLY: {reason}"
    if broker.number("lanemq_sends_paused"):
        ready = f"SENDS PAUSED: {broker.table.get('lanePaused', 'see /ready of its monitor')}"
    else:
        ready = "ready" if broker.number("lanemq_ready") else "NOT READY: see /ready of its monitor"
    damaged, rebuilding = broker.number("lanemq_damaged_places"), broker.number("lanemq_index_rebuild_bytes")
    safety = "durable" if broker.number("lanemq_durable") else "relaxed: a power cut can lose messages"
    return (
        f"{ready}, {safety}"
        + (f", {plural(int(damaged), 'damaged place')} in the log" if damaged else "")
        + (
            f", lost indexes are rebuilt: {size_text(rebuilding)} to read; retention deletes nothing until then"
            if rebuilding
            else ""
        )
    )


def _disk(broker: BrokerFigures) -> str:
    free, size = broker.number("lanemq_disk_free_bytes"), broker.number("lanemq_disk_size_bytes")
    log = f"log {size_text(broker.number('lanemq_log_bytes') or 0)}"
    pending = f"{size_text(broker.number('lanemq_pending_bytes') or 0)} not written yet"
    space = "" if free is None or size is None else f"{size_text(free)} free of {size_text(size)}, "
    return f"{space}{log}, {pending}"


def _latencies(broker: BrokerFigures) -> str:
    named = {
        "send": "lanemq_send_seconds",
        "group commit": "lanemq_group_commit_seconds",
        "flush": "lanemq_flush_seconds",
        "loop delay": "lanemq_loop_delay_seconds",
    }
    texts = [
        f"{name} {_limit(median)} / {_limit(high)}"
        for name, metric in named.items()
        if (median := broker.number(f"{metric}_p50")) is not None
        and (high := broker.number(f"{metric}_p99")) is not None
    ]
    return ", ".join(texts) + (" (p50 / p99)" if texts else "")


def _limit(seconds: float) -> str:
    return "> 10 s" if seconds == float("inf") else f"≤ {seconds * 1000:g} ms"


def _clients(broker: BrokerFigures) -> str:
    connections, polls = broker.number("lanemq_connections") or 0, broker.number("lanemq_long_polls") or 0
    refusals = {reason: count for (reason,), count in broker.series("lanemq_refusals_total").items() if count}
    refused = ", ".join(f"{count:.0f} {reason}" for reason, count in refusals.items()) or "nothing"
    return f"{plural(int(connections), 'connection')}, {plural(int(polls), 'long poll')}; refused: {refused}"


def _lanes(broker: BrokerFigures) -> str:
    texts = []
    for state in ("held", "parked", "redriving"):
        lanes = broker.number("lanemq_lanes", status=state)
        if lanes:
            messages = broker.number("lanemq_lane_messages", status=state) or 0
            texts.append(f"{lanes:.0f} {state} with {plural(int(messages), 'message')}")
    texts.append(f"{plural(int(broker.number('lanemq_dead_letters') or 0), 'dead letter')}")
    texts.append(f"{broker.number('lanemq_delayed_messages') or 0:.0f} delayed")
    return ", ".join(texts)


def _age_text(lag: float, seconds: float | None) -> str | None:
    if not lag:
        return NONE
    return "unknown" if seconds is None else duration_text(seconds * 1000)


def _groups(broker: BrokerFigures) -> list[tuple[object, ...]]:
    behind = broker.series("lanemq_lag_seconds")
    rows = sorted(broker.series("lanemq_lag_messages").items(), key=lambda row: (-row[1], row[0]))
    return [
        (
            group,
            topic,
            int(lag),
            _age_text(lag, behind.get((group, topic))),
            int(broker.number("lanemq_group_members", group=group) or 0),
            int(broker.number("lanemq_lanes", group=group, topic=topic, status="held") or 0),
            int(broker.number("lanemq_lanes", group=group, topic=topic, status="parked") or 0),
        )
        for (group, topic), lag in rows
        if lag or not topic.startswith(RETRY_PREFIX)
    ]
