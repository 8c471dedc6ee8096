"""The stamp ⇄ its text: which producer sent a message, in which epoch, as its how-manieth.

It travels as one message property, so stock brokers store it and stock consumers ignore it. The rule guarded
here: a stamp is read back exactly as written, or not at all. Half-readable text counts as no stamp, because
judging repeats by a guess could drop a message.
"""

import re
from typing import Final

from lanemq._fast import compiled
from lanemq.model.errors import UsageError
from lanemq.model.stamp import Stamp
from lanemq.wire.properties import find_property

LANE_STAMP: Final = "LANE_STAMP"

_NAME = f"{LANE_STAMP}\x01".encode()
_PRODUCER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TEXT = re.compile(r"([A-Za-z0-9_-]{1,64})\.(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,18})")
_MOST = 2**63 - 1


def encode_stamp(stamp: Stamp) -> str:
    """The property's value; `UsageError` for a producer id or a number that would not be read back."""
    if _PRODUCER.fullmatch(stamp.producer) is None:
        raise UsageError(f"producer id {stamp.producer[:80]!r} is not allowed: use 1 to 64 of A-Z a-z 0-9 _ -")
    if not (0 <= stamp.epoch <= _MOST and 0 <= stamp.sequence <= _MOST):
        raise UsageError(f"stamp {stamp}: epoch and sequence go from 0 to {_MOST}")
    return str(stamp)


def decode_stamp(text: str) -> Stamp | None:
    """The stamp in a property's value, None for anything else."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    epoch, sequence = int(found[2]), int(found[3])
    return Stamp(found[1], epoch, sequence) if max(epoch, sequence) <= _MOST else None


def find_stamp(properties_text: str) -> Stamp | None:
    """The stamp among a message's properties, without decoding the others."""
    text = find_property(properties_text, LANE_STAMP)
    return None if text is None else decode_stamp(text)


def stamp_in(properties: bytes) -> Stamp | None:
    """The same for properties as they are stored; they must be UTF-8."""
    return find_stamp(properties.decode()) if _NAME in properties else None


def following_stamps(texts: list[bytes]) -> tuple[Stamp | None, int]:
    """The stamp of the first message, and how many messages follow one another from it on, itself included.

    Behind a message without a stamp those follow that have none either.
    """
    first = stamp_in(texts[0])
    at, count = 1, len(texts)
    if first is None:
        while at < count and stamp_in(texts[at]) is None:
            at += 1
        return None, at
    producer, epoch, sequence = first
    prefix = f"\x02{LANE_STAMP}\x01{producer}.{epoch}.".encode()
    while at < count:
        at += count_stamped(texts, at, prefix, sequence + at)
        if at < count:
            if stamp_in(texts[at]) != (producer, epoch, sequence + at):
                break
            at += 1
    return first, at


@compiled
def count_stamped(texts: list[bytes], start: int, prefix: bytes, sequence: int) -> int:
    """How many texts from `start` on end with the stamps from `sequence` on: there our producers put them.

    Compared as text, which is quicker than reading; where the comparison fails, the stamp may stand elsewhere.
    """
    endings = map((prefix.replace(b"%", b"%%") + b"%d\x02").__mod__, range(sequence, sequence + len(texts) - start))
    fits = list(map(bytes.endswith, texts[start:], endings))
    return fits.index(False) if False in fits else len(fits)
