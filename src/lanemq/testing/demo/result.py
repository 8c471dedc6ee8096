"""Compares the table that the pipeline filled with the expected result.

Each transition of each order must be in the table once, the rows of an order must be the steps of its life without a
gap, and its last row must be the expected state. The rows are read from the table itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from lanemq.testing.order_life import NEXT, OrderTruth

MAX_SHOWN = 5


class Transition(NamedTuple):
    """A row of the table."""

    order: str
    seq: int
    before: str | None
    status: str
    total: int


@dataclass(slots=True)
class TableVerdict:
    """The number of orders and rows compared, and every difference."""

    orders: int = 0
    rows: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.wrong and self.orders > 0


def rows_in(table: Path) -> int:
    """The number of committed rows, from the table's log alone."""
    if not DeltaTable.is_deltatable(str(table)):
        return 0
    return sum(pa.table(DeltaTable(str(table)).get_add_actions())["num_records"].to_pylist())


def read_rows(table: Path) -> list[Transition]:
    columns = ", ".join(f'"{name}"' for name in Transition._fields)
    rows = QueryBuilder().register("t", DeltaTable(str(table))).execute(f"select {columns} from t").read_all()
    return [Transition(**row) for row in pa.table(rows).to_pylist()]


def compare(rows: Iterable[Transition], truth: Mapping[str, OrderTruth]) -> TableVerdict:
    """Compares every expected order with its rows, and every row with the expected orders."""
    lives: dict[str, list[Transition]] = defaultdict(list)
    for row in rows:
        lives[row.order].append(row)
    verdict = TableVerdict(orders=len(truth), rows=sum(map(len, lives.values())))
    verdict.wrong += [f"{order} is in the table, but was never sent" for order in lives.keys() - truth.keys()]
    for order, wanted in truth.items():
        verdict.wrong += _wrong_with(order, sorted(lives.get(order, []), key=lambda row: row.seq), wanted)
    return verdict


def _wrong_with(order: str, life: list[Transition], wanted: OrderTruth) -> list[str]:
    numbers = [row.seq for row in life]
    if numbers != list(range(1, wanted.events + 1)):
        return [f"{order} has the events {numbers[:10]} …, {len(numbers)} of {wanted.events}"]
    before = None
    for row in life:
        if row.before != before or row.status not in NEXT[before]:
            return [f"{order}: {row.status} (seq {row.seq}) was applied after {row.before}, not after {before}"]
        before = row.status
    if (life[-1].status, life[-1].total) != (wanted.status, wanted.total):
        return [f"{order} ended as {life[-1].status}/{life[-1].total}, not {wanted.status}/{wanted.total}"]
    return []
