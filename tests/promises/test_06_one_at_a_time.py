"""Promise 6: one at a time. The next turn of a lane starts only after the previous one ended well or was decided."""

import threading

import pytest
from tests.chaos.members import LocalGroup, until
from tests.chaos.mutants import lane_lock

from lanemq.client.message import Message


class Crowd:
    """A handler that lets others run during each call, and records overlaps."""

    def __init__(self) -> None:
        self.met: list[str] = []
        self.most = 0
        self._inside: list[str] = []
        self._lock = threading.Lock()
        self._pause = threading.Event()

    def handle(self, message: Message) -> None:
        key = message.key or ""
        with self._lock:
            if key in self._inside:
                self.met.append(key)
            self._inside.append(key)
            self.most = max(self.most, len(self._inside))
        self._pause.wait(0.001)
        with self._lock:
            self._inside.remove(key)


def run(group: LocalGroup) -> Crowd:
    crowd = Crowd()
    for number in range(400):
        group.producer.send_oneway("orders", number, key=f"k{number % 10}")
    group.producer.flush()
    group.member("a", crowd.handle)
    until("all are done", lambda: len(group.done) == 400)
    return crowd


def test_turns_of_a_key_never_overlap_while_keys_run_in_parallel(group: LocalGroup) -> None:
    """ "One at a time", although there is concurrency."""
    crowd = run(group)
    assert crowd.met == []
    assert crowd.most > 1
    for number in range(10):
        offsets = [offset for _, key, offset in group.done if key == f"k{number}"]
        assert offsets == sorted(offsets)


def test_without_lanes_turns_of_a_key_overlap(group: LocalGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the same threads without lanes."""
    lane_lock(monkeypatch.setattr)
    assert run(group).met
