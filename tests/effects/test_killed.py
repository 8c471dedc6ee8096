"""Members that are killed and frozen in the middle of their transactions: each effect happens once, in order.

`make effects TRIALS=1000` runs many trials with default settings; with `LEASES=short` members have short leases, so
that more trials fit into an hour. The normal suite runs a few with short leases.
"""

import os
import sys
import threading
from pathlib import Path

import psycopg
import pytest
from tests.effects.arena import Arena, MemberHost
from tests.postgres_server import Server

from lanemq.testing.embedded import EmbeddedBroker

TRIALS = int(os.environ.get("LANEMQ_EFFECT_TRIALS", "4"))
ARENAS = 2 if TRIALS < 12 else 6
"""Groups that run beside each other, half of them on each database: most of a trial is waiting for a lease."""
MANY = 200
SEED = int(os.environ.get("LANEMQ_EFFECT_SEED", "1"))
SHORT_LEASES = os.environ.get("LANEMQ_EFFECT_LEASES", "short") == "short"


@pytest.mark.slow
@pytest.mark.timeout(300 + 20 * TRIALS)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_each_effect_happens_once_whoever_is_killed_or_frozen(postgres: Server, tmp_path: Path) -> None:
    host = MemberHost(tmp_path / "members.log")
    try:
        with EmbeddedBroker() as broker:
            arenas = []
            for number in range(ARENAS):
                name = f"arena{number}"
                database = str(tmp_path / f"{name}.db") if number % 2 else database_of(postgres, name)
                seed = SEED * 1000 + number
                arenas.append(
                    Arena(name, host, broker.address, database, tmp_path, seed=seed, short_leases=SHORT_LEASES)
                )
            errors = run_all(arenas)
    finally:
        host.close()
    for arena in arenas:
        print(arena.outcome)
    assert errors == []
    assert [wrong for arena in arenas for wrong in arena.outcome.wrong] == []
    outcomes = [arena.outcome for arena in arenas]
    assert sum(each.kills + each.freezes for each in outcomes) == TRIALS
    for database in ("sqlite", "postgresql"):
        there = [each for each in outcomes if each.database == database]
        assert sum(each.plain_repeats for each in there) > 0, (
            "the negative control: what is written plainly is repeated"
        )
        if TRIALS >= MANY:
            assert sum(each.stale_refused for each in there) > 0, "no frozen member woke up in front of its transaction"


def database_of(postgres: Server, name: str) -> str:
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {name}")
    return postgres.dsn.replace("dbname=postgres", f"dbname={name}")


def run_all(arenas: list[Arena]) -> list[BaseException]:
    errors: list[BaseException] = []

    def run(arena: Arena, trials: int) -> None:
        try:
            arena.run(trials)
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(arena, len(range(at, TRIALS, len(arenas)))))
        for at, arena in enumerate(arenas)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors
