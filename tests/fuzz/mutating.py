"""Damages inputs in the ways that parsers dislike: lengths that lie, cuts, repeats, splices, odd text."""

from collections.abc import Callable, Sequence
from random import Random

NUMBERS = (0, 1, 7, 8, 127, 128, 255, 32767, 32768, 65535, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 16 << 20)
TEXTS = (
    b"-1", b"99999999999999999999", b"NaN", b"1e999", b"null", b"\\ud800", b"\xff\xfe", b"\0", b"../", b"\x01", b"\x02",
    b'"', b"{", b"}" * 9, b"[" * 300, b"{" * 300, b"$ref", b"%RETRY%", b"\xed\xa0\x80", b"9" * 5000,
)  # fmt: skip


class Mutator:
    """The same seed gives the same inputs."""

    def __init__(self, random: Random, corpus: Sequence[bytes]) -> None:
        self._random = random
        self._corpus = corpus
        self._ways: list[Callable[[bytearray], None]] = [
            self._flip, self._number, self._text, self._cut, self._drop, self._repeat, self._splice, self._noise,
        ]  # fmt: skip

    def make(self) -> bytes:
        """A sound input with none to six things wrong."""
        data = bytearray(self._random.choice(self._corpus))
        for _ in range(self._random.randint(0, 6)):
            self._random.choice(self._ways)(data)
        return bytes(data)

    def _place(self, data: bytearray) -> int:
        return self._random.randrange(len(data) + 1)

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)

    def _number(self, data: bytearray) -> None:
        at, size = self._place(data), self._random.choice((1, 2, 4, 8))
        number = self._random.choice(NUMBERS) & ((1 << 8 * size) - 1)
        data[at : at + size] = number.to_bytes(size, "big")

    def _text(self, data: bytearray) -> None:
        at = self._place(data)
        data[at : at + self._random.choice((0, 0, 1, 4))] = self._random.choice(TEXTS)

    def _cut(self, data: bytearray) -> None:
        del data[self._place(data) :]

    def _drop(self, data: bytearray) -> None:
        at = self._place(data)
        del data[at : at + self._random.randint(1, 16)]

    def _repeat(self, data: bytearray) -> None:
        at = self._place(data)
        part = data[at : at + self._random.randint(1, 64)]
        data[at:at] = part * self._random.choice((1, 2, 50))

    def _splice(self, data: bytearray) -> None:
        other = self._random.choice(self._corpus)
        data[self._place(data) :] = other[self._random.randrange(len(other) + 1) :]

    def _noise(self, data: bytearray) -> None:
        at = self._place(data)
        data[at : at + self._random.choice((0, 8))] = self._random.randbytes(self._random.randint(1, 16))
