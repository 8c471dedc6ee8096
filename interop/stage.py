"""The environment of one case: its own topics and groups, started clients, and clean-up.

Cases share one broker and one client process and run at the same time, so all names are unique.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import TypeVar

from interop.clients import Admin, Client, ClientError, Listening, Member, Poller, Producer, Puller
from interop.leases import TakeOver, take_over
from interop.ports import Answer, eventually

Thing = TypeVar("Thing", Producer, Member, Poller, Puller)

HOST, GUEST = "host", "guest"
"""Whose member: the client under test, or LaneMQ's beside it."""


class Stage:
    """Names begin with that of the case, to make a broker's log readable; `close` stops what was started."""

    def __init__(self, case: str, backend: str, clients: Mapping[str, Client]) -> None:
        """`clients` by kind; a guest only if the case needs one."""
        self._case = case
        self._backend = backend
        self._clients = clients
        self._client = clients[HOST]
        self._count = 0
        self._ending = contextlib.ExitStack()

    @property
    def admin(self) -> Admin:
        return self._client.admin

    def name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._case}_{self._count}"

    def topic(self, queues: int = 4) -> str:
        """Creates a topic and waits until it exists, so that no key moves because of a late route."""
        topic = self.name("t")
        self.admin.create_topic(topic, queues)
        self.eventually(lambda: len(self.admin.bounds(topic)) == queues, f"{topic} has {queues} queues")
        return topic

    def stored(self, topic: str, count: int) -> dict[int, tuple[int, int]]:
        """Waits until the bounds cover `count` messages, because Apache's broker acknowledges before it indexes."""

        def covered() -> dict[int, tuple[int, int]] | None:
            bounds = self.admin.bounds(topic)
            return bounds if sum(high for _, high in bounds.values()) >= count else None

        return self.eventually(covered, f"{topic} shows {count} messages")

    def producer(self) -> Producer:
        return self._ended(self._client.producer(self.name("p")))

    def member(
        self,
        group: str,
        topic: str,
        listening: Listening | None = None,
        own_process: bool = False,
        kind: str = HOST,
    ) -> Member:
        return self._ended(self._clients[kind].member(group, topic, listening or Listening(), own_process))

    def take_over(self, victim: str, heir: str) -> TakeOver:
        """How soon a member of one kind gets the queues of a dead one."""
        return take_over(self._backend, self._clients[victim].name, self._clients[heir].name)

    def poller(self, group: str, topic: str, tags: str = "*") -> Poller:
        return self._ended(self._client.poller(group, topic, tags))

    def puller(self, group: str) -> Puller:
        return self._ended(self._client.puller(group))

    def eventually(self, attempt: Callable[[], Answer | None], what: str, within: float = 60) -> Answer:
        """Asks until the answer is true; a refusal counts as "not yet"."""
        refusals: list[ClientError] = []

        def asked() -> Answer | None:
            try:
                return attempt()
            except ClientError as refusal:
                refusals.append(refusal)
                return None

        try:
            return eventually(asked, within, what)
        except TimeoutError as late:
            late.add_note(f"last refusal: {refusals[-1] if refusals else 'none'}")
            raise

    def close(self) -> None:
        self._ending.close()

    def _ended(self, thing: Thing) -> Thing:
        self._ending.callback(_stop_if_running, thing)
        return thing


def _stop_if_running(thing: Producer | Member | Poller | Puller) -> None:
    """Stops it unless the case has already stopped or killed it."""
    with contextlib.suppress(ClientError):
        thing.stop()
