"""`lanemq pipeline state`: the state of one key, or of all keys."""

from pathlib import Path

import click

from lanemq.cli.options import WrongUsage, json_option
from lanemq.cli.output import Grid, plural, show
from lanemq.cli.pipeline.loading import FILE_OR_CHECKPOINT, NAME, declared_at, pipeline_security_options, refused
from lanemq.clock import time_text


@click.command()
@FILE_OR_CHECKPOINT
@click.argument("key", required=False)
@NAME
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="Keys to list, without KEY.")
@click.option(
    "--into",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the state of all keys to a Parquet file instead.",
)
@json_option
@pipeline_security_options
def state(place: str, key: str | None, name: str | None, limit: int, into: Path | None, as_json: bool) -> None:
    """Show the state that a pipeline's step keeps for KEY, or for all keys.

    It is the state after the last finished batch, whether or not the pipeline runs.
    """
    if key is not None and into is not None:
        raise WrongUsage("--into writes all keys: leave KEY out")
    from lanemq.pipelines.operate.state import lane_state, state_table

    pipeline = declared_at(place, name) or place
    with refused():
        if key is not None:
            found = lane_state(pipeline, key)
            waits = found.held.why.value if found.held is not None else None
            document = {"key": key, "shard": found.shard, "state": found.state, "number": found.number}
            timers = [{"name": each.name, "due_at": each.due_at, "clock": each.clock} for each in found.timers]
            document |= {"seen_at": found.seen_at, "waiting": waits, "timers": timers}
            lines = [f"timer {each.name}: due at {time_text(each.due_at)}, {each.clock} time" for each in found.timers]
            show(as_json, lambda: document, f"key {key}: {waits or 'moving'}, state {found.state!r}", *lines)
            return
        table = state_table(pipeline)
    if into is not None:
        import pyarrow.parquet as pq

        pq.write_table(table, into)
        show(as_json, lambda: {"file": str(into), "keys": table.num_rows}, f"{into}: {plural(table.num_rows, 'key')}")
        return
    rows = table.slice(0, limit).to_pylist()
    columns = ("key", "waiting", "seen_at", "state")
    grid = Grid(columns, [tuple(row[column] for column in columns) for row in rows], "no key has a state")
    more = [f"{table.num_rows:,} keys; --limit and --into show more"] if table.num_rows > limit else []
    show(as_json, lambda: {"keys": table.num_rows, "states": rows}, grid, *more)
