"""Columns that rows to merge bring along and the table has not: it gets them in the commit of the batch.

The rule guarded here: no row ends a pipeline because of a column that nobody declared. What the table has already
under the name, with another type, gets the values as text if it takes text, and stays as it is otherwise, which is told
once. Declared columns are judged when the sink is opened, and never here; nor is what tells a sink to keep old values.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from lanemq.model.errors import UsageError
from lanemq.pipelines.ports import KEPT, Merge
from lanemq.pipelines.rows import Rows
from lanemq.pipelines.sinks.columns import arrow_schema
from lanemq.pipelines.sinks.ledger import Terms

log = logging.getLogger(__name__)

C = TypeVar("C")


def widened(terms: Terms, rows: Rows) -> Terms:
    """The terms of a merge with the columns that the rows have beyond them."""
    if not isinstance(terms.how, Merge) or set(rows.schema.names) <= set(terms.schema.names):
        return terms
    if KEPT in rows.schema.names and KEPT not in terms.schema.names:
        raise UsageError(
            f"the rows say in {KEPT} which columns they leave as they are, and the sink was opened without that: a "
            f"batch that was decided with left_out='keep' has to be finished with it; change the option afterwards"
        )
    more = [field for field in arrow_schema(rows.schema) if field.name not in terms.schema.names]
    return replace(terms, schema=pa.schema([*terms.schema, *(field.with_nullable(True) for field in more)]))


class Room:
    """What a table makes of columns beyond those that were agreed; `where` is how people call it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._told: set[str] = set()

    def made(
        self,
        changes: pa.Table,
        agreed: Collection[str],
        there: Mapping[str, C],
        accepts: Callable[[C, pa.DataType], bool],
    ) -> tuple[pa.Table, list[pa.Field]]:
        """The changes as the table can take them, and the columns that it has to get first."""
        missing: list[pa.Field] = []
        folded = {name.casefold() for name in there}
        for field in changes.schema:
            column = there.get(field.name)
            if field.name in agreed or (column is not None and accepts(column, field.type)):
                continue
            if column is None and field.name.casefold() not in folded:
                missing.append(field)
            elif column is not None and accepts(column, pa.string()):
                at = changes.schema.get_field_index(field.name)
                changes = changes.set_column(at, field.name, changes[field.name].cast(pa.string()))
            else:
                changes = changes.drop_columns([field.name])
                self._tell(field)
        return changes, missing

    def _tell(self, field: pa.Field) -> None:
        if field.name not in self._told:
            self._told.add(field.name)
            log.warning(
                "%s has a column %s that does not take %s, or one whose name differs only in case: the field is left "
                "out; declare it, or rename the column",
                self._where,
                field.name,
                field.type,
            )
