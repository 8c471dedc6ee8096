"""Whether a PostgreSQL may lose what it has confirmed: shown by `lanemq doctor` and by the leader."""

from collections.abc import Callable, Iterator
from typing import Any

from lanemq.coordinator.store import Safety, Standby

Rows = Callable[[str], list[Any]]

_SETTINGS = (
    "SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),"
    " current_setting('synchronous_standby_names')"
)
_STANDBYS = (
    "SELECT coalesce(application_name, ''), coalesce(sync_state, ''),"
    " coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::bigint, -1)"
    " FROM pg_stat_replication WHERE left(application_name, 13) <> 'pg_basebackup'"
)


def safety_of(rows: Rows) -> Safety:
    """What the server says of its copies and of its settings."""
    standbys = tuple(
        Standby(name or "a standby", sync in ("sync", "quorum"), int(lag)) for name, sync, lag in rows(_STANDBYS)
    )
    return Safety(standbys, tuple(_problems(rows(_SETTINGS)[0], standbys)))


def _problems(settings: tuple[str, ...], standbys: tuple[Standby, ...]) -> Iterator[str]:
    fsync, pages, commit, names = settings
    if fsync != "on":
        yield "fsync is off: a crash of the machine loses changes, and may damage the database; set fsync = on"
    if pages != "on":
        yield "full_page_writes is off: a crash of the machine may damage the database, on most file systems"
    if commit in ("off", "local"):
        yield (
            f"synchronous_commit = {commit} is the default of the server, the database or the role. Coordinators set "
            f"on with each change, and a pooler or trigger that overrides it would lose changes"
        )
    if standbys and not names:
        yield (
            "synchronous_standby_names is empty although there are standbys: a fail-over loses the newest changes. "
            "Groups then wait until all leases have ended, and messages are handled again; name a standby that confirms"
        )
    elif standbys and not any(each.confirms for each in standbys):
        yield "no standby confirms changes now, so they wait for one, or a fail-over loses the newest"
