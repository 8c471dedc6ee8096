"""Stamps as a column of structs.

The meaning is that of `wire.properties.decode_stamp`: text that is not exactly a stamp is no stamp (null). A stamp is
`producer.epoch.sequence`; the pattern does the cutting, and only numbers that may not fit are looked at one by one.
"""

import pyarrow as pa
import pyarrow.compute as pc

from lanemq._fast import compiled
from lanemq.wire.properties import decode_stamp

STAMP_TYPE = pa.struct([("producer", pa.string()), ("epoch", pa.int64()), ("sequence", pa.int64())])

_PATTERN = r"\A(?P<producer>[A-Za-z0-9_-]{1,64})\.(?P<epoch>0|[1-9][0-9]{0,18})\.(?P<sequence>0|[1-9][0-9]{0,18})\z"


@compiled
def stamp_column(values: pa.Array) -> pa.Array:
    """One struct per value; null for null and for what is no stamp."""
    parts = pc.extract_regex(values, _PATTERN)
    try:
        numbers = [pc.struct_field(parts, name).cast(pa.int64()) for name in ("epoch", "sequence")]
    except pa.ArrowInvalid:
        return _one_by_one(values)
    return pa.StructArray.from_arrays(
        [pc.struct_field(parts, "producer"), *numbers], fields=list(STAMP_TYPE), mask=parts.is_null()
    )


def _one_by_one(values: pa.Array) -> pa.Array:
    """A number of 19 digits may exceed 64 bits; then the reference decides for the whole batch."""
    stamps = [None if text is None else decode_stamp(text) for text in values.to_pylist()]
    return pa.array([None if stamp is None else stamp._asdict() for stamp in stamps], STAMP_TYPE)
