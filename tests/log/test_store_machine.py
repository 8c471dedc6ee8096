"""Any mix of appends, checkpoints, crashes, clean stops and deleted indexes leaves every queue as it was."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.conftest import SMALL, crash, memory_folder, message, read_all

from lanemq.log.store import Store

STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 2), st.integers(1, 4), st.integers(0, 1500)),
    st.sampled_from(["checkpoint", "crash", "stop", "lose indexes", "stage and crash", "garbage", "drop"]),
)


class Ledger:
    """A store, and the acknowledged records that it must contain."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.acknowledged: dict[int, list[str]] = {0: [], 1: [], 2: []}
        self.counter = 0
        self.store = self.opened()

    def opened(self) -> Store:
        store = Store(self.folder, SMALL)
        store.recover()
        return store

    def send(self, queue_id: int, count: int, size: int) -> None:
        texts = [f"{self.counter + i}:" + "x" * size for i in range(count)]
        self.counter += count
        staged = self.store.append("t", queue_id, [message(text) for text in texts], store_time=self.counter)
        assert staged.first_offset == len(self.acknowledged[queue_id])
        self.acknowledged[queue_id] += texts

    def do(self, step: str) -> None:
        if step == "checkpoint":
            self.store.checkpoint()
            return
        if step == "drop":
            self.store.state.drop_topic("t", self.store.drop_topic("t"))
            self.acknowledged = {0: [], 1: [], 2: []}
            return
        if step == "stage and crash":
            self.store.appender.stage("t", 0, [message("never acknowledged")], store_time=self.counter)
        if step in ("stop", "lose indexes"):
            self.store.close()
        else:
            crash(self.store)
        if step == "lose indexes":
            shutil.rmtree(self.folder / "index")
        if step == "garbage":
            for path in sorted((self.folder / "log").glob("*.log"))[-1:]:
                path.write_bytes(path.read_bytes() + b"\0" * 17)
        self.store = self.opened()

    def check(self) -> None:
        for queue_id, texts in self.acknowledged.items():
            assert read_all(self.store, queue_id=queue_id) == (texts, [])


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=14))
def test_no_schedule_loses_or_changes_an_acknowledged_record(steps: list[tuple[str, int, int, int] | str]) -> None:
    folder = memory_folder()
    ledger = Ledger(folder)
    try:
        for step in steps:
            if isinstance(step, str):
                ledger.do(step)
            else:
                ledger.send(*step[1:])
            ledger.check()
    finally:
        crash(ledger.store)
        shutil.rmtree(folder)
