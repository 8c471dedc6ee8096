"""Session windows: clicks of a visitor belong to one session until there are none for 30 minutes.

Clicks carry the time at which they happened, and arrive up to a minute out of order. The pipeline writes one row per
session as soon as no further click can belong to it. It runs twice with the same checkpoint, the cut in the middle of
many sessions. Rows and the sessions that are still open are compared with a plain count in Python.

    python examples/sessions.py
"""

import json
import random
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from lanemq import Admin, Producer
from lanemq.pipelines import (
    Event,
    EventTime,
    ParquetSink,
    Pipeline,
    StepContext,
    Timer,
    Topic,
    Transitions,
    run,
    state_table,
)
from lanemq.spark import recommended
from lanemq.testing.embedded import EmbeddedBroker

GAP = 30 * 60 * 1_000
"""Milliseconds of silence that end a session."""
DISORDER = 60
"""Seconds by which a click may arrive behind a later one."""
OUTPUTS = "visitor string, first timestamp, last timestamp, clicks long"
BEGIN = int((datetime.now(UTC) - timedelta(days=10)).timestamp()) * 1_000

Session = list[int]
"""First and last click, milliseconds, and the number of clicks."""


def joined(sessions: list[Session], at: int) -> list[Session]:
    """The open sessions of a visitor with one more click. It may join two of them, or be a session of its own."""
    near = [each for each in sessions if each[0] - at < GAP and at - each[1] < GAP]
    times = [at, *(each[0] for each in near), *(each[1] for each in near)]
    grown = [min(times), max(times), 1 + sum(each[2] for each in near)]
    return sorted([each for each in sessions if each not in near] + [grown])


def step(state: list[Session] | None, event: Event, context: StepContext) -> tuple[list[Session], list[Any]]:
    sessions = joined(state or [], context.event_time_ms)
    context.set_timer("close", at=closes(sessions[0]))
    return sessions, []


def close(state: list[Session], timer: Timer, context: StepContext) -> tuple[list[Session] | None, list[Any]]:
    """Writes the first session: event time has passed its end by more than clicks may be late."""
    ended, *rest = state
    if rest:
        context.set_timer("close", at=closes(rest[0]))
    first, last = (datetime.fromtimestamp(time / 1_000, UTC) for time in ended[:2])
    return rest or None, [{"visitor": timer.key, "first": first, "last": last, "clicks": ended[2]}]


def closes(session: Session) -> datetime:
    return datetime.fromtimestamp((session[1] + GAP) / 1_000, UTC)


def clicks(count: int, dice: random.Random) -> Iterator[tuple[str, dict[str, int]]]:
    """Clicks in the order in which they arrive."""
    times = sorted(BEGIN + dice.randrange(3 * 24 * 3_600) * 1_000 for _ in range(count))
    arrived = sorted((at + dice.randrange(DISORDER) * 1_000, at) for at in times)
    for _, at in arrived:
        yield f"visitor-{dice.randrange(12)}", {"at": at}


def counted(sent: list[tuple[str, dict[str, int]]]) -> list[tuple[str, int, int, int]]:
    """All sessions, found without LaneMQ: sort the clicks of a visitor, and cut where the silence is long."""
    by_visitor: dict[str, list[int]] = {}
    for visitor, click in sent:
        by_visitor.setdefault(visitor, []).append(click["at"])
    found = []
    for visitor, times in by_visitor.items():
        session: list[int] = []
        for at in sorted(times):
            if session and at - session[-1] >= GAP:
                found.append((visitor, session[0], session[-1], len(session)))
                session = []
            session.append(at)
        found.append((visitor, session[0], session[-1], len(session)))
    return sorted(found)


def main(spark: SparkSession | None = None) -> dict[str, Any]:
    if spark is None:
        session = recommended().master("local[2]").config("spark.ui.enabled", "false")
        spark = session.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="lanemq-sessions-") as folder, EmbeddedBroker() as broker:
        sent = list(clicks(1_500, random.Random(7)))
        with Admin(broker.address) as admin:
            admin.create_topic("clicks", queues=2, ordered=True)
        with Producer(broker.address) as producer:
            for part in (sent[:700], sent[700:]):
                producer.send_many("clicks", part)
                run(declared(broker.address, Path(folder)), spark, once=True)
        closed = [
            (row["visitor"], millis(row["first"]), millis(row["last"]), row["clicks"])
            for row in pq.read_table(Path(folder) / "sessions", partitioning=None).to_pylist()
        ]
        states = state_table(Path(folder) / "checkpoint").to_pylist()
        still_open = [(row["key"], *each) for row in states for each in loaded(row["state"])]
        right = sorted(closed + still_open) == counted(sent)
        return {"right": right, "clicks": len(sent), "closed": len(closed), "open": len(still_open)}


def declared(servers: str, folder: Path) -> Pipeline:
    return Pipeline(
        name="sessions",
        source=Topic(servers, "clicks"),
        stage=Transitions(step=step, on_timer=close, outputs=OUTPUTS, event_time=EventTime(of="at", lateness=DISORDER)),
        sink=ParquetSink(folder / "sessions"),
        checkpoint=folder / "checkpoint",
    )


def millis(time: datetime) -> int:
    return round(time.timestamp() * 1_000)


def loaded(state: str) -> list[Session]:
    return json.loads(state) or []


if __name__ == "__main__":
    end = main()
    print(f"{end['clicks']} clicks made {end['closed']} sessions, and {end['open']} are still open")
    print("the same as counted by hand" if end["right"] else "the rows are wrong")
