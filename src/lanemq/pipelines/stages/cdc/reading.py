"""Messages of one queue to the newest row of each key: what an executor does, without Spark.

The rules guarded here: a message that is poison gives no row at all, but for the deletion that is known for certain
where a row's key changed; of equal keys the newest change counts; and what `claims.py` cannot prove to be superfluous
is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lanemq.pipelines.ports import DELETED, KEPT, SEQUENCE
from lanemq.pipelines.stages.cdc import shapes
from lanemq.pipelines.stages.cdc.changes import Changes, KeyNames, Reading
from lanemq.pipelines.stages.cdc.claims import Claims
from lanemq.pipelines.stages.cdc.debezium_values import left_out, precise
from lanemq.pipelines.stages.cdc.fold import newest, newest_rows
from lanemq.pipelines.stages.cdc.kept import filled, kept_column
from lanemq.pipelines.stages.cdc.plan import Plan
from lanemq.pipelines.stages.cdc.sequence import encode
from lanemq.pipelines.stages.cdc.values import convert

REASON = "reason"
_LEFT_OUT: Final = (
    "the source left {} out, a large column that the update did not touch: send whole rows (ALTER TABLE ... REPLICA "
    "IDENTITY FULL), say left_out='keep', or leave the column out of the schema"
)
Counts = dict[str, int]


@dataclass(slots=True)
class Folded:
    """The newest rows, the messages set aside, and what was counted on the way."""

    rows: pa.Table
    dead: pa.Table
    counts: Counts


class Reader:
    """Reads and folds by one plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._format, self._shape = plan.reader()
        fields = plan.table.schema.fields
        self._decoder = shapes.decoder(self._format.document, [each.dataType for each in fields])
        self._claims = Claims(plan, self._shape)
        self._types = {each.name: each.type for each in plan.table.arrow()}
        self._sequence = [self._format.path(part.path) for part in plan.parts]
        self.conflicts: set[str] = set()
        """Columns that the table got while it runs, and that values did not fit."""

    def fold(self, messages: pa.Table) -> Folded:
        """`messages` are of one queue, in the order of their offsets."""
        chosen = self._claims.worth_reading(messages)
        if chosen is None:
            return self._finish(self._read(messages), frozenset())
        reading = self._read(messages.take(chosen))
        left = self._find_left_out(reading)
        unsure = self._claims.unproved(messages, chosen, reading)
        if self._plan.table.keeps:
            unsure |= {reading.changes.message[place] for places in left.values() for place in places}
        if not unsure:
            return self._finish(reading, unsure)
        keys = reading.messages["key"].take(pa.array(sorted(unsure)))
        again = pc.is_in(messages["key"], value_set=keys.combine_chunks())
        if self._plan.table.keeps:  # what a row kept may stand under another message key: all at once
            again = pc.or_(again, pc.is_in(pa.arange(0, messages.num_rows), value_set=chosen))
            return self._finish(self._read(messages.filter(again)), frozenset())
        others = self._finish(self._read(messages.filter(again)), frozenset())
        return self.together([self._finish(reading, unsure), others])

    def together(self, parts: Sequence[Folded]) -> Folded:
        """Parts of one queue as one."""
        if len(parts) == 1:
            return parts[0]
        rows = pa.concat_tables([part.rows for part in parts])
        counts: Counts = {}
        for part in parts:
            for name, count in part.counts.items():
                counts[name] = counts.get(name, 0) + count
        chosen = newest_rows(rows, self._plan.table.keys)
        return Folded(chosen, pa.concat_tables([part.dead for part in parts]), counts)

    def _read(self, messages: pa.Table) -> Reading:
        decoded = shapes.Decoded(shapes.listed(messages["value"]), self._decoder)
        documents = self._format.unwrap(decoded.documents)
        names = KeyNames(self._shape, self._plan.table.keys, shapes.listed(messages["key"]))
        changes = Changes(poison=decoded.broken)
        self._format.read(documents, names, changes)
        parts = [[None if each is None else get(each) for each in documents] for get in self._sequence]
        sequences = encode(self._plan.parts, parts, messages["queue_offset"].combine_chunks())
        reading = Reading(messages, names, changes, sequences.take(pa.array(changes.message, pa.int64())), [])
        self._check_sequences(reading)
        self._read_keys(reading)
        if self._plan.misfits == "dead":
            self._find_left_out(reading)
            self._refuse_misfits(reading)
        return reading

    def _check_sequences(self, reading: Reading) -> None:
        if reading.sequences.null_count:
            paths = ", ".join(part.path for part in self._plan.parts)
            for place in pc.indices_nonzero(reading.sequences.is_null()).to_pylist():
                reading.changes.poison.setdefault(
                    reading.changes.message[place], f"the sequence ({paths}) is missing or out of range"
                )

    def _read_keys(self, reading: Reading) -> None:
        for name in self._plan.table.keys:
            column, _ = self._column(name, reading.changes, None)
            reading.keys.append(column)
            if column.null_count:
                for place in pc.indices_nonzero(column.is_null()).to_pylist():
                    reading.changes.poison.setdefault(
                        reading.changes.message[place], f"the key {name} is missing or no {self._types[name]}"
                    )

    def _refuse_misfits(self, reading: Reading) -> None:
        for name in self._plan.table.columns:
            if name not in self._plan.table.keys and name not in self._plan.grown:
                reading.columns[name], misfits = self._column(name, reading.changes, None)
                for place in misfits:
                    reading.changes.refuse_row(place, f"the value of {name} does not fit {self._types[name]}")

    def _find_left_out(self, reading: Reading) -> dict[str, list[int]]:
        """Marks are no values. Without `keep` a change that has one is poison: it would put null over what is there."""
        if reading.left is not None:
            return reading.left
        changes, reading.left, moved = reading.changes, {}, {*reading.changes.moved}
        others = [name for name in self._plan.table.columns if name not in self._plan.table.keys]
        for name in others:
            found = left_out(self._values(name, changes, None), self._types[name])
            for place in found:
                self._shape.clear(changes.row[place], name)
                if not self._plan.table.keeps or changes.message[place] in moved:
                    changes.refuse_row(place, _LEFT_OUT.format(name))
            reading.left |= {name: found} if found else {}
        return reading.left

    def _finish(self, reading: Reading, leave_out: frozenset[int]) -> Folded:
        """The newest rows of what is neither poison nor left out."""
        changes, table = reading.changes, self._plan.table
        keys = pa.table(dict(zip(table.keys, reading.keys, strict=True))).append_column(SEQUENCE, [reading.sequences])
        places: pa.Array = pa.arange(0, len(changes.message))
        halved = changes.halved - leave_out
        unwanted = (leave_out | changes.poison.keys()) - halved
        if unwanted or halved:
            places = changes.places_without(unwanted, halved)
            keys = keys.take(places)
        chosen = newest(keys, table.keys)
        if reading.left and table.keeps:
            rows, misfits = self._rows(reading, keys, places)
            rows = filled(rows, table.keys, chosen)
        else:
            rows, misfits = self._rows(reading, keys.take(chosen), places.take(chosen))
        if rows is None:
            self._find_left_out(reading)
            return self._finish(reading, leave_out)
        dead = {place: why for place, why in changes.poison.items() if place not in leave_out}
        told = {"key_changes": changes.moved, "ddl": changes.ddl, "ignored": changes.ignored}
        counts = {name: sum(message not in unwanted for message in messages) for name, messages in told.items()}
        counts |= {"misfits": misfits, "poison": len(dead)}
        return Folded(rows, _dead(reading.messages, dead), counts)

    def _rows(self, reading: Reading, keys: pa.Table, places: pa.Array) -> tuple[pa.Table | None, int]:
        """Whole rows for the chosen changes, and how many values did not fit; None: a change is not of a whole row."""
        chosen, misfits, columns = places.to_pylist(), 0, []
        for name in self._plan.table.columns:
            if name in self._plan.table.keys:
                columns.append(keys[name])
            elif name in reading.columns:
                columns.append(reading.columns[name].take(places))
            else:
                values = self._values(name, reading.changes, chosen)
                if reading.left is None and left_out(values, self._types[name]):
                    return None, 0
                column, wrong = self._converted(name, values)
                columns.append(column)
                misfits += len(wrong)
                self.conflicts |= {name} & {*self._plan.grown} if wrong else set()
        deleted = pa.array([reading.changes.deleted[place] for place in chosen], pa.bool_())
        rows = pa.table([*columns, keys[SEQUENCE], deleted], names=[*self._plan.table.columns, SEQUENCE, DELETED])
        if self._plan.table.keeps:
            rows = rows.append_column(KEPT, [kept_column(chosen, reading.left or {})])
        return rows, misfits

    def _column(self, name: str, changes: Changes, chosen: list[int] | None) -> tuple[pa.Array, list[int]]:
        """One column of the chosen changes, or of all, and the places of values that do not fit it."""
        return self._converted(name, self._values(name, changes, chosen))

    def _converted(self, name: str, values: list[Any]) -> tuple[pa.Array, list[int]]:
        wanted = self._types[name]
        if self._plan.decimals == "base64" and pa.types.is_decimal(wanted):
            values = precise(values, wanted.scale)
        return convert(values, wanted, self._plan.unit(name))

    def _values(self, name: str, changes: Changes, chosen: list[int] | None) -> list[Any]:
        """As they were decoded. Deletions have a key and nothing else."""
        rows, deleted = changes.row, changes.deleted
        if chosen is not None and len(chosen) < len(rows):
            rows, deleted = [rows[place] for place in chosen], [deleted[place] for place in chosen]
        get, only_key = self._shape.getter(name), name not in self._plan.table.keys
        if only_key and True in deleted:
            values = [None if gone else get(row) for row, gone in zip(rows, deleted, strict=True)]
        else:
            values = list(map(get, rows))
        return values


def _dead(messages: pa.Table, reasons: dict[int, str]) -> pa.Table:
    places = sorted(reasons)
    why = pa.array([reasons[place] for place in places], pa.string())
    return messages.take(pa.array(places, pa.int64())).append_column(REASON, [why])
