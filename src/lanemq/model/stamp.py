"""The producer stamp, by which the broker recognises repeats, gaps and replaced producers."""

from typing import NamedTuple


class Stamp(NamedTuple):
    """A message's place in the sequence that its producer sent to one queue.

    Sequences start at 0 in every epoch and grow by one per message and queue. A producer that cannot know
    what was stored before it (it restarted, or the broker forgot it) takes a higher epoch and starts at 0.
    """

    producer: str
    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.producer}.{self.epoch}.{self.sequence}"
