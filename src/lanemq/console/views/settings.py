"""Settings: the values in use, and where each came from."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from lanemq.client.admin.views import BrokerFigures
from lanemq.client.admin.watching import BrokerSetting, BrokerView
from lanemq.console.settings import ConsoleSettings
from lanemq.console.wording import NONE, number, size, span


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting."""

    owner: str
    name: str
    value: str
    origin: str
    changed: bool
    plain: str = ""
    """The value in larger units, if it is a size or a long time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """One broker and its figures."""

    name: str
    address: str
    kind: str
    error: str
    log_bytes: str
    disk_used: str
    stored: str
    stale: str
    """Requests of members that do not own the queue any more."""


_ORIGIN_HIDDEN = frozenset({"origins"})


def console_rows(settings: ConsoleSettings) -> tuple[SettingRow, ...]:
    rows = []
    for each in fields(settings):
        if each.name in _ORIGIN_HIDDEN:
            continue
        value, origin = getattr(settings, each.name), settings.origins.get(each.name, "default")
        text, plain = _with_unit(each.name, _text(value))
        rows.append(SettingRow("console", each.name, text, origin, origin != "default", plain))
    return tuple(rows)


def setting_rows(found: Sequence[BrokerSetting]) -> tuple[SettingRow, ...]:
    return tuple(map(_broker_setting, found))


def _broker_setting(each: BrokerSetting) -> SettingRow:
    value = {"True": "yes", "False": "no"}.get(each.value, each.value) or NONE
    if each.is_default is None:  # of RocketMQ, whose options have units of their own
        return SettingRow(each.broker, each.name, value, "not reported", False)
    origin = "default" if each.is_default else each.origin or "set at its start"
    text, plain = _with_unit(each.name, value)
    return SettingRow(each.broker, each.name, text, origin, not each.is_default, plain)


def _with_unit(name: str, value: str) -> tuple[str, str]:
    """A value with its unit, and again in a larger one if that is easier to read. Numbers with a point are seconds."""
    if not value.replace(".", "", 1).isdecimal():
        return value, ""
    amount = float(value)
    if name.endswith("_bytes"):
        return f"{value} B", size(amount) if amount >= 1024 else ""
    if "." in value:
        return f"{amount:.12g} s", span(amount) if amount >= 60 else ""
    return value, ""


def broker_rows(brokers: Sequence[BrokerView]) -> tuple[BrokerRow, ...]:
    return tuple(map(_broker, brokers))


def _broker(view: BrokerView) -> BrokerRow:
    info = view.info
    start, end = info.get("commitLogMinOffset", ""), info.get("commitLogMaxOffset", "")
    kept = size(int(end) - int(start)) if start.isdecimal() and end.isdecimal() else NONE
    used = info.get("commitLogDiskRatio", "")
    stale = BrokerFigures(view.name, view.address, view.lane, info).number("lanemq_stale_requests_total")
    return BrokerRow(
        name=view.name,
        address=view.address,
        kind="LaneMQ" if view.lane else info.get("brokerVersionDesc", "RocketMQ"),
        error=view.error,
        log_bytes=kept,
        disk_used=f"{float(used):.0%}" if used.replace(".", "", 1).isdecimal() else NONE,
        stored=number(int(info["putMessageTimesTotal"])) if info.get("putMessageTimesTotal", "").isdecimal() else NONE,
        stale=NONE if stale is None else number(int(stale)),
    )


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value not in (None, "") else NONE
