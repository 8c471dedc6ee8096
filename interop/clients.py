"""The interface of a client, as the cases use it.

A client is a process, or several, that talks to one broker address. It starts producers, members of groups,
pull consumers and an admin, all by blocking calls. What members did is reported in
turns: one call of the listener each, with the wall time of its start and end, so that overlaps can be found.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

WAIT_SECONDS = 90.0
"""An orderly start may take 25 s by RocketMQ's own timers, and the machine may be busy."""


class ClientError(Exception):
    """The client under test refused, or its call failed; the text is the client's own."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The position of a message, or of the first message of a batch."""

    queue: int
    offset: int
    id: str
    offset_id: str
    size: int
    sha1: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A message as a consumer or the admin received it; `body` is its beginning, `sha1` covers all of it."""

    topic: str
    queue: int
    offset: int
    id: str
    keys: str | None
    tags: str | None
    attempts: int
    body: str
    size: int
    sha1: str
    store_ms: int
    properties: Mapping[str, str]


@dataclass(slots=True)
class Turn:
    """One call of a member's listener; without an end it is still running."""

    member: str
    messages: Sequence[Seen]
    started_us: int
    ended_us: int | None = None
    verdict: str | None = None

    @property
    def body(self) -> str:
        return self.messages[0].body

    @property
    def queue(self) -> int:
        return self.messages[0].queue


@dataclass(frozen=True, slots=True)
class Rule:
    """The result of the listener for messages whose body contains `match`, `times` times for each message.

    Orderly verdicts: success, suspend, commit, rollback, throw, nothing. Concurrent: success, later, throw.
    A rule that holds keeps its turn open until the member is released.
    """

    match: str
    verdict: str = "success"
    times: int = -1
    hold: bool = False
    delay_level: int | None = None


@dataclass(frozen=True, slots=True)
class Listening:
    """Options of a member: RocketMQ's defaults, except for the start (first) and the pauses (short)."""

    orderly: bool = True
    broadcast: bool = False
    tags: str = "*"
    from_last: bool = False
    rules: Sequence[Rule] = ()
    sleep_ms: int = 0
    suspend_ms: int = 100
    max_attempts: int = -1
    auto_commit: bool = True
    threads: int = 8
    batch: int = 1


@dataclass(frozen=True, slots=True)
class Content:
    """What is sent: text repeated `repeat` times, or `noise` bytes that do not compress."""

    text: str = ""
    repeat: int = 1
    noise: int = 0
    tags: str | None = None
    keys: str | None = None
    delay_level: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to one raw pull; `status` is FOUND, NO_NEW_MSG, NO_MATCHED_MSG or OFFSET_ILLEGAL."""

    status: str
    next: int
    min: int
    max: int
    messages: Sequence[Seen]


class Producer(Protocol):
    def send(self, topic: str, content: str | Content, key: str | None = None) -> Receipt:
        """With a key: to the queue RocketMQ's hash selector picks; returns when the broker has it."""
        ...

    def send_batch(self, topic: str, bodies: Sequence[str], key: str) -> Receipt:
        """All bodies as one batch to the key's queue; the receipt is that of the first."""
        ...

    def stop(self) -> None: ...


class Member(Protocol):
    id: str
    """As the broker lists it."""

    def turns(self) -> list[Turn]: ...

    def wait(self, until: Callable[[list[Turn]], bool], within: float = WAIT_SECONDS) -> list[Turn]:
        """Blocks until the condition holds for the turns so far; raises TimeoutError with what was seen."""
        ...

    def release(self) -> None:
        """Releases every held turn, now and later."""
        ...

    def stop(self) -> None:
        """Leaves the group: commits what is finished and releases locks."""
        ...

    def kill(self) -> None:
        """kill -9; only for a member started with `own_process`."""
        ...


class Poller(Protocol):
    """A pull consumer that the client feeds (RocketMQ's lite pull)."""

    def poll(self, timeout_ms: int = 1000) -> list[Seen]: ...

    def commit(self) -> None: ...

    def seek(self, topic: str, queue: int, offset: int) -> None: ...

    def stop(self) -> None: ...


class Puller(Protocol):
    """One pull, one answer, at an offset of the caller's choice."""

    def pull(self, topic: str, queue: int, offset: int, most: int = 32, tags: str = "*") -> Pulled: ...

    def stop(self) -> None: ...


class Admin(Protocol):
    def create_topic(self, topic: str, queues: int) -> None: ...

    def reset(self, topic: str, group: str, timestamp_ms: int) -> dict[int, int]:
        """Moves the group to the first message stored at or after the time, online or not."""
        ...

    def view(self, topic: str, message_id: str) -> Seen: ...

    def query(self, topic: str, key: str) -> list[Seen]: ...

    def progress(self, topic: str, group: str) -> dict[int, int]:
        """Per queue, the group's committed offset."""
        ...

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Per queue, the first offset kept and the next to be written."""
        ...

    def members(self, group: str) -> list[str]: ...

    def search(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        """Per queue, the first offset stored at or after the time."""
        ...


class Client(Protocol):
    name: str
    admin: Admin

    def producer(self, group: str) -> Producer: ...

    def member(self, group: str, topic: str, listening: Listening, own_process: bool = False) -> Member: ...

    def poller(self, group: str, topic: str, tags: str = "*", auto_commit: bool = False) -> Poller: ...

    def puller(self, group: str) -> Puller: ...

    def close(self) -> None: ...
