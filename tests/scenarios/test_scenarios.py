"""Runs the text scripts of this folder and compares every answer with the recorded one.

A script is a story about one group: `command → answer`, `#` for remarks, times as `31s` or `500ms`.

    lane A 5s        A is a LaneMQ client that asks for leases of 5 s; without this line it is a stock client
    tick 31s         time passes
    lock A q0 q1     A asks the broker for queues, or renews them
    unlock A q0      A gives queues back; a LaneMQ client names the epoch
    consume A q0     would A itself run its handler now?
    commit A q0      A sends its progress; does the broker take it?
    disconnect A     A's connection closes
    expire           the broker looks for leases that ran out
    restart          the broker process restarts with what it had persisted
"""

import difflib
from pathlib import Path

import pytest
from tests.core.brokering.consistency import check

from lanemq.core.brokering.lock_table import Current, Lease, LockTable, SavedLease, Stale, Unowned
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
GROUP = "g"
GRACE = Millis(1_000)
LANE_TIMEOUT = Millis(800)
"""How long a LaneMQ client starts turns after an answer; the scripts' clients hear when their connection is lost."""
STOCK_TIMEOUT = Millis(30_000)
"""RocketMQ: `ProcessQueue.REBALANCE_LOCK_MAX_LIVE_TIME`, how long a stock client uses a lock without renewing it."""


class Client:
    """A minimal client: what one member believes about its leases."""

    def __init__(self, lease: Millis | None) -> None:
        self.lease = lease
        self.keep_alive_timeout = STOCK_TIMEOUT if lease is None else Millis(lease // 2)
        self.usable_until: dict[MessageQueue, Millis] = {}
        self.epochs: dict[MessageQueue, Epoch] = {}

    def granted(self, lease: Lease, *, asked_at: Millis) -> None:
        self.usable_until[lease.queue] = Millis(asked_at + self.keep_alive_timeout)
        self.epochs[lease.queue] = lease.epoch

    def refused(self, queue: MessageQueue) -> None:
        """Keeps the epoch on purpose: the frozen handler of a stale owner still has it."""
        self.usable_until.pop(queue, None)

    def connection_lost(self, *, now: Millis) -> None:
        if self.lease is not None:
            self.usable_until = {queue: min(until, now) for queue, until in self.usable_until.items()}

    def epoch(self, queue: MessageQueue) -> Epoch | None:
        """The epoch that goes over the wire. Stock clients know of none."""
        return None if self.lease is None else self.epochs.get(queue, Epoch(0))


class Stage:
    """The broker's lock table, what it persisted, and the clients of one script."""

    def __init__(self) -> None:
        self.now = Millis(0)
        self.table = LockTable()
        self.disk: dict[MessageQueue, SavedLease] = {}
        self.clients: dict[str, Client] = {}

    def play(self, command: str) -> str | None:
        verb, *arguments = command.split()
        answer: str | None = getattr(self, f"do_{verb}")(*arguments)
        check(self.table)
        return answer

    def do_lane(self, name: str, lease: str) -> None:
        self.clients[name] = Client(millis(lease))

    def do_tick(self, span: str) -> None:
        self.now = Millis(self.now + millis(span))

    def do_restart(self) -> None:
        self.table = LockTable()
        self.table.restore(self.disk.values(), now=self.now)

    def do_lock(self, name: str, *labels: str) -> str:
        client = self.client(name)
        queues = [queue_of(label) for label in labels]
        timeout = None if client.lease is None else Millis(min(client.keep_alive_timeout, LANE_TIMEOUT))
        grant = self.table.acquire(GROUP, queues, name, lease=client.lease, keep_alive_timeout=timeout, now=self.now)
        self.persist(grant.changes)
        answers: dict[MessageQueue, str] = {}
        for lease in grant.granted:
            client.granted(lease, asked_at=self.now)
            answers[lease.queue] = f"granted until {clock(lease.expires_at)}, epoch {lease.epoch}"
        for refusal in grant.refused:
            client.refused(refusal.queue)
            answers[refusal.queue] = f"refused: held by {refusal.holder}, {clock(refusal.remaining)} left"
        if len(queues) == 1:
            return answers[queues[0]]
        return "; ".join(f"{label_of(queue)} {answers[queue]}" for queue in queues)

    def do_unlock(self, name: str, *labels: str) -> str:
        client = self.client(name)
        released: list[SavedLease] = []
        for queue in map(queue_of, labels):
            client.refused(queue)
            epoch = client.epoch(queue)
            released += self.table.release(GROUP, [queue], name, epoch=epoch, now=self.now)
        self.persist(released)
        return "released" if released else "nothing released"

    def do_consume(self, name: str, label: str) -> str:
        until = self.client(name).usable_until.get(queue_of(label))
        if until is None:
            return "refused: not locked"
        return "allowed" if self.now < until else f"refused: lease unusable since {clock(until)}"

    def do_commit(self, name: str, label: str) -> str:
        queue = queue_of(label)
        match self.table.verdict(GROUP, queue, name, self.client(name).epoch(queue), now=self.now):
            case Stale(holder=holder):
                return f"refused: held by {holder or 'no member'}"
            case Current() | Unowned():
                return "accepted"

    def do_disconnect(self, name: str) -> str:
        self.client(name).connection_lost(now=self.now)
        shortened = filter(None, self.table.disconnected(name, grace=GRACE, now=self.now))
        ends = [f"{label_of(lease.queue)} ends at {clock(lease.expires_at)}" for _, lease in shortened]
        return ", ".join(ends) or "nothing shortened"

    def do_expire(self) -> str:
        ended = [f"{lease.owner} loses {label_of(lease.queue)}" for _, lease in self.table.expire(now=self.now)]
        return ", ".join(ended) or "nothing"

    def client(self, name: str) -> Client:
        return self.clients.setdefault(name, Client(None))

    def persist(self, rows: tuple[SavedLease, ...] | list[SavedLease]) -> None:
        self.disk.update({row.queue: row for row in rows})


def queue_of(label: str) -> MessageQueue:
    return MessageQueue("orders", "a", int(label.removeprefix("q")))


def label_of(queue: MessageQueue) -> str:
    return f"q{queue.queue_id}"


def millis(text: str) -> Millis:
    return Millis(int(text[:-2]) if text.endswith("ms") else int(text[:-1]) * 1000)


def clock(time: Millis) -> str:
    return f"{time // 1000}s" if time % 1000 == 0 else f"{time}ms"


def play(script: str) -> list[str]:
    """The script again, with the answers as they are now."""
    stage, played = Stage(), []
    for line in script.splitlines():
        command, arrow, _ = line.partition("→")
        if not command.strip() or command.startswith("#"):
            played.append(line)
            continue
        answer = stage.play(command.strip())
        played.append(f"{command}{arrow} {answer}" if arrow else line)
        if (answer is None) == bool(arrow):
            played[-1] = f"{command.rstrip()}   → {answer or '(takes no answer)'}"
    return played


@pytest.mark.row("A39")
@pytest.mark.row("A41")
@pytest.mark.row("A43")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_gives_the_recorded_answers(path: Path) -> None:
    recorded = path.read_text(encoding="utf-8").splitlines()
    difference = difflib.unified_diff(recorded, play("\n".join(recorded)), "recorded", "played", lineterm="")
    text = "\n".join(difference)
    assert not text, f"{path.name} plays differently now:\n{text}"


def test_all_scripts_are_found() -> None:
    """With an empty list the test above would pass without running anything."""
    assert {"lease_handover", "frozen_owner_is_fenced"} <= {path.stem for path in SCRIPTS}


def test_wrong_answer_is_noticed() -> None:
    assert play("lock A q0 → granted until 99s, epoch 1") == ["lock A q0 → granted until 60s, epoch 1"]


def test_forgotten_answer_is_noticed() -> None:
    assert play("lock A q0") == ["lock A q0   → granted until 60s, epoch 1"]
