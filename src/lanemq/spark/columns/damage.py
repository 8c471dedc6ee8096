"""Bodies that cannot be unpacked: what becomes of a message whose compressed body is damaged.

A task that fails over one message fails at every attempt, and its query at every start. The rule guarded here: such a
message is never passed over silently, and whoever wants the query to live can have the rest of the rows.
"""

import logging
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

from lanemq.model.errors import RemoteProtocolError
from lanemq.wire.compression import decompress

log = logging.getLogger(__name__)


class Damaged(StrEnum):
    """The option `onDamaged`."""

    FAIL = "fail"
    """The query ends, and says which message it is."""
    NULL = "null"
    """The row has no value."""
    RAW = "raw"
    """The row has the bytes that are stored, still packed."""


class Packed(NamedTuple):
    """A message whose body was sent compressed."""

    row: int
    sys_flag: int
    body: bytes


def unpack(packed: Iterable[Packed], damaged: Damaged, place: Callable[[int], str]) -> list[bytes | None]:
    """The bodies that were meant. What is damaged is one line in the log for all, not one for each."""
    plain: list[bytes | None] = []
    told: list[str] = []
    for row, sys_flag, body in packed:
        try:
            plain.append(decompress(sys_flag, body))
        except RemoteProtocolError as error:
            if damaged is Damaged.FAIL:
                raise RemoteProtocolError(
                    f"{place(row)}: {error}. To go on set onDamaged=null (its value is null) or onDamaged=raw (its "
                    f"value is the bytes as they are stored)"
                ) from None
            plain.append(None if damaged is Damaged.NULL else body)
            told.append(f"{place(row)}: {error}")
    if told:
        log.warning("%d damaged, onDamaged=%s; the first is %s", len(told), damaged, told[0])
    return plain
