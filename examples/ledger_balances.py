"""Account balances from transfers: every entry with the balance after it, in SQLite, exact to the cent.

A transfer is two messages: one takes money from an account, one gives it to another. Each account is a lane, so its
entries are booked in order. An entry that would overdraw the account is refused, and its row says so. Some messages
are sent twice; their numbers expose them. At the end each balance must be the sum of the entries up to it.

    python examples/ledger_balances.py
"""

import random
import sqlite3
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from lanemq import Admin, Producer
from lanemq.pipelines import Event, Pipeline, SqliteSink, Topic, Transitions, start
from lanemq.spark import recommended
from lanemq.testing.embedded import EmbeddedBroker

ACCOUNTS, OPENING_CENTS = 50, 10_000
ENTRIES = "account string, number long, transfer string, cents long, booked boolean, balance long"


class Entry(msgspec.Struct):
    """One side of a transfer; `number` counts the account's entries from 1."""

    number: int
    transfer: str
    cents: int


def book(balance: int | None, event: Event) -> tuple[int, list[dict[str, Any]]]:
    """Books one entry. The state of an account is its balance."""
    before, entry = balance or 0, event.value
    booked = before + entry.cents >= 0
    after = before + entry.cents if booked else before
    row = {"account": event.key, "number": entry.number, "transfer": entry.transfer, "cents": entry.cents}
    return after, [row | {"booked": booked, "balance": after}]


def entries(transfers: int, dice: random.Random) -> Iterator[tuple[str, Entry]]:
    """An opening entry for every account, then transfers. Some messages are sent again later."""
    numbers: Counter[str] = Counter()

    def entry(account: int, transfer: str, cents: int) -> tuple[str, Entry]:
        numbers[f"account-{account}"] += 1
        return f"account-{account}", Entry(numbers[f"account-{account}"], transfer, cents)

    for account in range(ACCOUNTS):
        yield entry(account, "opening", OPENING_CENTS)
    late: list[tuple[str, Entry]] = []
    for number in range(transfers):
        giver, taker = dice.sample(range(ACCOUNTS), 2)
        cents = dice.randrange(1, 3_000)
        for made in (entry(giver, f"t{number}", -cents), entry(taker, f"t{number}", cents)):
            yield made
            if dice.random() < 0.05:
                late.append(made)
        if late and dice.random() < 0.1:
            yield late.pop(0)
    yield from late


def main(spark: SparkSession | None = None, transfers: int = 2_000) -> dict[str, Any]:
    if spark is None:
        session = recommended().master("local[2]").config("spark.ui.enabled", "false")
        spark = session.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="lanemq-ledger-") as folder, EmbeddedBroker() as broker:
        messages = list(entries(transfers, random.Random(7)))
        keep_books(spark, broker.address, Path(folder), messages)
        return audit(Path(folder) / "bank.db", messages)


def keep_books(spark: SparkSession, servers: str, folder: Path, messages: list[tuple[str, Entry]]) -> None:
    with Admin(servers) as admin:
        admin.create_topic("entries", queues=4, ordered=True)
    pipeline = Pipeline(
        "ledger",
        source=Topic(servers, "entries", maxOffsetsPerTrigger=1_500),
        stage=Transitions(step=book, outputs=ENTRIES, decode=Entry, state_type=int, sequence="number"),
        sink=SqliteSink(folder / "bank.db", "entries"),
        checkpoint=folder / "checkpoint",
    )
    with Producer(servers) as producer:
        producer.send_many("entries", [(account, msgspec.to_builtins(entry)) for account, entry in messages])
    start(pipeline, spark, once=True).await_end()


def audit(database: Path, messages: list[tuple[str, Entry]]) -> dict[str, Any]:
    """Compares the database with the messages, and each balance with the sum of its entries."""
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(
            "SELECT account, number, cents, booked, balance FROM entries ORDER BY rowid"
        ).fetchall()
    wrong: list[str] = []
    sums: dict[str, int] = defaultdict(int)
    numbers: dict[str, int] = defaultdict(int)
    for account, number, cents, booked, balance in rows:
        sums[account] += cents if booked else 0
        numbers[account] += 1
        if balance != sums[account] or balance < 0 or number != numbers[account]:
            wrong.append(f"{account}: entry {number} left {balance}, the sum of {numbers[account]} is {sums[account]}")
    sent = Counter(account for account, _ in {(account, entry.number) for account, entry in messages})
    wrong += [
        f"{account} has {numbers[account]} entries of {sent[account]}"
        for account in sent
        if sent[account] != numbers[account]
    ]
    for line in wrong[:5]:
        print(line)
    refused = sum(1 for row in rows if not row[3])
    return {"right": not wrong, "entries": len(rows), "messages": len(messages), "refused": refused}


if __name__ == "__main__":
    end = main()
    print(f"{end['messages']} messages made {end['entries']} entries, {end['refused']} of them refused")
    print("after every entry the balance is the sum of the entries" if end["right"] else "the books are wrong")
