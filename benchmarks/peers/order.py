"""The messages of a run, and the check that a reader got each of them, in the order of its key.

Every body is JSON and carries its key and its number within the key. A number that a reader meets twice is a repeat,
which an at-least-once system may deliver. A number that never comes is a lost message; one that comes after a later
number of its key is out of order. Both make a round's verdict something other than `pass`.
"""

from array import array
from collections.abc import Iterable

Messages = list[tuple[str, bytes]]
PASS = "pass"


class Numbered:
    """Makes messages whose numbers continue from call to call, key after key."""

    def __init__(self, keys: int, size: int, prefix: str = "key", first: int = 0) -> None:
        self._keys = [f"{prefix}-{number}" for number in range(keys)]
        self._size = size
        self._made = first

    @property
    def made(self) -> int:
        return self._made

    def messages(self, count: int) -> Messages:
        first, self._made = self._made, self._made + count
        return [self._message(number) for number in range(first, first + count)]

    def _message(self, number: int) -> tuple[str, bytes]:
        key = self._keys[number % len(self._keys)]
        return key, body(key, number // len(self._keys), self._size)


def body(key: str, number: int, size: int, at: int = 0) -> bytes:
    """A JSON event of exactly `size` bytes, or as few as it takes. `at` is the moment of sending, in nanoseconds."""
    event = f'{{"key":"{key}","n":{number},"at":{at},"pad":"'
    return f'{event}{"x" * max(0, size - len(event) - 2)}"}}'.encode()


class OrderCheck:
    """Counts what a reader got of each key: new messages, repeats, and messages that came after a later one."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._missing: dict[str, set[int]] = {}
        self._late: dict[str, int] = {}
        self.repeats = 0

    def see(self, key: str, number: int) -> bool:
        """Whether the message is new; a repeat is not."""
        expected = self._next.get(key, 0)
        if number == expected:
            self._next[key] = expected + 1
            return True
        return self._unexpected(key, number, expected)

    def _unexpected(self, key: str, number: int, expected: int) -> bool:
        missing = self._missing.setdefault(key, set())
        if number > expected:
            missing.update(range(expected, number))
            self._next[key] = number + 1
            return True
        if number in missing:
            missing.remove(number)
            self._late[key] = self._late.get(key, 0) + 1
            return True
        self.repeats += 1
        return False

    def distinct(self, prefix: str = "") -> int:
        """Messages that were read at least once, of the keys that begin with this prefix."""
        if not prefix:
            return sum(self._next.values()) - sum(map(len, self._missing.values()))
        return _sum(self._next, prefix) - _sum({key: len(some) for key, some in self._missing.items()}, prefix)

    def late(self, prefix: str = "") -> int:
        """Messages that came after a later one of their key."""
        return _sum(self._late, prefix)


class ArrayCheck(OrderCheck):
    """The same check for the keys `key-0`, `key-1` and so on, in an array.

    With a million keys the dictionary of the other one costs 0.8 microseconds a message more than with ten thousand,
    which would count as growth of the client that is measured.
    """

    def __init__(self, keys: int) -> None:
        super().__init__()
        self._numbers = array("i", bytes(4 * keys))

    def see(self, key: str, number: int) -> bool:
        index = int(key[4:])
        expected = self._numbers[index]
        if number == expected:
            self._numbers[index] = expected + 1
            return True
        self._next[key] = expected
        is_new = self._unexpected(key, number, expected)
        self._numbers[index] = self._next.pop(key)
        return is_new

    def distinct(self, prefix: str = "") -> int:
        return sum(self._numbers) - sum(map(len, self._missing.values()))


def _sum(counts: dict[str, int], prefix: str) -> int:
    return sum(count for key, count in counts.items() if not prefix or key.rpartition("-")[0] == prefix)


def verdict(check: OrderCheck, expected: int, prefix: str = "") -> str:
    """`pass`, or what is wrong with the messages of a round: `lost 3 of 100,000`."""
    distinct, late, wrong = check.distinct(prefix), check.late(prefix), []
    if distinct < expected:
        wrong.append(f"lost {expected - distinct:,} of {expected:,}")
    if distinct > expected:
        wrong.append(f"{distinct - expected:,} more than the {expected:,} acknowledged")
    if late:
        wrong.append(f"{late:,} of {expected:,} out of order")
    return ", ".join(wrong) or PASS


def checked(received: Iterable[tuple[str, int]]) -> OrderCheck:
    check = OrderCheck()
    for key, number in received:
        check.see(key, number)
    return check
