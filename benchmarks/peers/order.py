"""The messages of a run, and the check that a reader got each of them, in the order of its key.

Every body is JSON and carries its key and its number within the key. A reader that meets a number twice has a repeat,
which an at-least-once system may deliver; a number that is skipped is a message lost or overtaken, which is a fault.
"""

from collections.abc import Iterable

Messages = list[tuple[str, bytes]]


class Numbered:
    """Makes messages whose numbers go on from call to call, key after key."""

    def __init__(self, keys: int, size: int, prefix: str = "key") -> None:
        self._keys = [f"{prefix}-{number}" for number in range(keys)]
        self._size = size
        self._made = 0

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
    """Counts what a reader got: messages, repeats, and faults (a number of a key was skipped)."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self.repeats = 0
        self.faults = 0

    @property
    def distinct(self) -> int:
        """Messages that were read at least once, provided there are no faults."""
        return sum(self._next.values())

    def see(self, key: str, number: int) -> bool:
        """Whether the message is the next of its key."""
        expected = self._next.get(key, 0)
        if number == expected:
            self._next[key] = expected + 1
            return True
        if number < expected:
            self.repeats += 1
        else:
            self.faults += 1
            self._next[key] = number + 1
        return False


def verdict(check: OrderCheck, expected: int) -> str:
    """`pass`, or what is wrong with the run."""
    if check.faults:
        return f"{check.faults} messages out of order or lost"
    if check.distinct != expected:
        return f"{check.distinct} of {expected} messages"
    return "pass"


def checked(received: Iterable[tuple[str, int]]) -> OrderCheck:
    check = OrderCheck()
    for key, number in received:
        check.see(key, number)
    return check
