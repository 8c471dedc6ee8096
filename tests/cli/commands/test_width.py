"""The tables of commands in a terminal of 80 columns, with names as long as people give them."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from rich.cells import cell_len
from tests.chaos.members import until
from tests.cli.conftest import Run

from lanemq.cli import output
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.dead_letters import count_dead_letters
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.consuming.retry_policy import DeadLetter, FailurePolicy, HoldKey
from lanemq.testing.embedded import EmbeddedBroker

COLUMNS = 80
TOPIC = "orders-of-the-northern-warehouse-and-all-of-its-branch-offices"
PARKING = "shipping-department-of-the-northern-warehouse-production"
GIVING_UP = "mail-department-of-the-northern-warehouse-production-2"
KEY = "customer-00000000000000000000000042/warehouse-north/order-0000000000000000000000000007"
WIDE = "注文番号" * 12
WHY = "no carrier takes it: " + "the address has no postal code, " * 4
COMMANDS = [
    f"topic list => {TOPIC}",
    f"topic describe {TOPIC}",
    f"group list => {PARKING} {TOPIC}",
    f"group describe {PARKING} => {TOPIC}",
    f"group reset {PARKING} --topic {TOPIC} --to first --dry-run => {TOPIC}",
    f"parked list => {KEY} {WIDE} {PARKING}",
    f"parked show {KEY} --group {PARKING}",
    f"parked redrive {WIDE} --group {PARKING} --dry-run",
    f"dead list => {GIVING_UP}",
    f"dead list --group {GIVING_UP} => {KEY} {WIDE} {TOPIC}",
    f"dead show lanemq/0/0 --group {GIVING_UP}",
    f"key {KEY} --topic {TOPIC} => {PARKING} {GIVING_UP}",
    f"key {WIDE} --topic {TOPIC} => {PARKING}",
    f"locks => {PARKING} {TOPIC}",
    f"status => {PARKING} {TOPIC}",
    f"top --count 1 => {PARKING} {TOPIC}",
    "config show => LANEMQ_BROKER_MAX_PINNED_BYTES",
    f"send {TOPIC} text --key {KEY} => {KEY}",
]
"""Commands, and names that their tables show in full."""


@dataclass(frozen=True)
class Shop:
    """One group has parked both keys, the other has given their messages up."""

    address: str


def consumer(address: str, group: str, policy: FailurePolicy) -> App:
    app = App(address, group=group, client_id=f"worker-of-{group}@4711")

    @app.ordered(TOPIC, on_fail=policy)
    def handle(message: Message) -> None:
        raise ValueError(WHY)

    return app


def lags(admin: Admin) -> set[tuple[str, ...]]:
    return {names for broker in admin.figures() for names in broker.series("lanemq_lag_messages")}


@pytest.fixture(scope="module")
def shop(broker: EmbeddedBroker) -> Iterator[Shop]:
    with Admin(broker.address) as admin, ParkedAdmin(broker.address) as parked, ExitStack() as running:
        admin.create_topic(TOPIC, 1, ordered=True)
        with Producer(broker.address) as producer:
            producer.send_many(TOPIC, [(KEY, "x" * 200), (WIDE, "注文" * 100)])
        running.enter_context(consumer(broker.address, PARKING, HoldKey(retries=0)))
        running.enter_context(consumer(broker.address, GIVING_UP, DeadLetter(skip=True, hold=HoldKey(retries=0))))
        until("both keys to be parked", lambda: len(parked.lanes(PARKING)) == 2)
        until("both messages to be given up", lambda: count_dead_letters(admin)[GIVING_UP] == 2)
        until("the figures to have the groups", lambda: (PARKING, TOPIC) in lags(admin))
        yield Shop(broker.address)


@pytest.mark.slow  # the shop takes a few seconds
@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: " ".join(each.split()[:2]))
def test_a_table_fits_80_columns_and_shows_names_in_full(
    run: Run, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[str] = []

    def rendered(grid: output.Grid, width: int) -> str:
        assert width == COLUMNS
        tables.append(real(grid, width))
        return tables[-1]

    real = output.rendered
    monkeypatch.setattr(output, "rendered", rendered)
    monkeypatch.setattr(output, "_is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    words, _, names = command.partition(" => ")
    shown = run(*words.split())
    assert shown.exit_code == 0, shown.output
    assert tables
    lines = [line for table in tables for line in table.splitlines()]
    assert [line for line in lines if cell_len(line) > COLUMNS] == []
    text = "".join("".join(tables).split())
    assert [name for name in names.split() if name not in text] == []
