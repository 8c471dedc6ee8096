"""`lanemq migrate`, and what `lanemq doctor` says of a coordinator's database."""

from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from lanemq.cli.options import YES, confirm, json_option
from lanemq.cli.output import Grid, plural, show, size_text
from lanemq.clock import SystemClock
from lanemq.coordinator.loading import known_identity
from lanemq.coordinator.migration import MigrationPlan, plan_migration
from lanemq.coordinator.migration import migrate as migrated
from lanemq.coordinator.postgres_rows import PostgresRows
from lanemq.model.errors import LaneError

FOLDER = click.Path(path_type=Path, file_okay=False)
SLOW_BYTES = 16 * 1024 * 1024
"""Of changes that a standby has not applied; about a segment of PostgreSQL's log."""


@click.command()
@click.option("--data", type=FOLDER, required=True, help="Data folder of the coordinator, which must be stopped.")
@click.option("--state", required=True, metavar="POSTGRESQL-URL", help="Database without the state of a coordinator.")
@click.option("--dry-run", is_flag=True, help="Only show what would be moved.")
@YES
@json_option
def migrate(data: Path, state: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Move the state of a stopped coordinator from its folder to PostgreSQL.

    Groups keep their offsets, lanes and epochs. The folder cannot be started afterwards. Members wait meanwhile, and
    continue when a coordinator with --state runs. A move that was interrupted is repeated.
    """
    clock = SystemClock()
    plan = plan_migration(data, state, clock)
    if not dry_run:
        confirm(yes, f"the state of {plan.source} will be moved to {plan.target}", _grid(plan))
        plan = migrated(data, state, clock)
    show(as_json, lambda: {"moved": not dry_run, **msgspec.to_builtins(plan._asdict())}, _grid(plan))


def _grid(plan: MigrationPlan) -> Grid:
    return Grid(("table", "rows"), list(plan.rows.items()), empty="nothing")


def state_findings(url: str) -> Iterator[tuple[str, str, str]]:
    """What would stop or harm coordinators with this database: check, result and text."""
    rows = PostgresRows(url, SystemClock())
    try:
        rows.connect()
        yield from _of_state(rows)
    except LaneError as error:
        yield "state", "PROBLEM", str(error)
    finally:
        rows.close()


def _of_state(rows: PostgresRows) -> Iterator[tuple[str, str, str]]:
    identity, row = known_identity(rows), rows.look().row
    if identity is None:
        yield "state", "ok", f"{rows.shown} has no groups yet: the first coordinator makes it the state of its cluster"
    else:
        kept = f"{rows.shown} has {plural(len(rows.groups()), 'group')} of cluster {identity.cluster}"
        yield "state", "ok", f"{kept}; its coordinator is {identity.name}"
    yield "leader", "ok", f"term {row.term}, {row.address}" if row.leader else f"none; the last term was {row.term}"
    if not rows.home():
        yield (
            "fail-over", "warning",
            "the database does not say which copy it is: grant the role pg_monitor, or execution of "
            "pg_control_system(); each restart of the server is taken for one that may have lost changes anyway",
        )  # fmt: skip
    safety = rows.safety()
    for each in safety.standbys:
        behind = "lag not known: grant pg_monitor" if each.lag_bytes < 0 else f"{size_text(each.lag_bytes)} behind"
        result = "warning" if each.lag_bytes > SLOW_BYTES else "ok"
        yield "standby", result, f"{each.name}, {'confirms changes' if each.confirms else 'asynchronous'}, {behind}"
    for problem in safety.problems:
        yield "fail-over", "warning", problem
    if not safety.problems:
        yield "fail-over", "ok", "nothing is known that would lose changes"
