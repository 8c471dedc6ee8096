"""Start, stop, crash, start again."""

import contextlib
import itertools
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from tests.broker.conftest import Start, StartProcess
from tests.broker.raw_client import RawClient, bodies, send_ext
from tests.broker.running import BrokerProcess, Gate, ManualClock
from tests.wire.encoding import encode_batch

from lanemq.log.state.progress_rows import ProgressRows
from lanemq.model.errors import LogInUse, WriteFailed
from lanemq.wire.codes import RequestCode
from lanemq.wire.properties import encode_properties


def test_second_broker_on_a_folder_is_refused_with_the_reason(start: Start, folder: Path) -> None:
    first = start()
    with pytest.raises(LogInUse, match="used by another broker"):
        start()
    assert first.connect().send("T").code == 0


def test_second_process_on_a_folder_says_why_and_ends(start_process: StartProcess) -> None:
    start_process()
    with pytest.raises(AssertionError, match="used by another broker"):
        start_process()


def test_other_users_of_the_machine_cannot_read_the_data_folder(start: Start, folder: Path) -> None:
    """Whatever the umask allows."""
    before = os.umask(0)
    try:
        running = start()
        running.connect().send("T")
        found = modes(folder / "data")
        running.stop()
    finally:
        os.umask(before)
    found |= modes(folder / "data")
    assert {mode for (_, is_folder), mode in found.items() if is_folder} == {0o750}
    assert {mode for (_, is_folder), mode in found.items() if not is_folder} == {0o640}
    assert {"state.db", "state.db-wal", "recovery.json", "lock"} <= {name for name, _ in found}


def modes(folder: Path) -> dict[tuple[str, bool], int]:
    """The permissions of a folder and of all that is in it, by name and whether it is a folder."""
    found = {}
    for each in (folder, *folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # a temporary file of the running broker
            found[each.name, each.is_dir()] = each.stat().st_mode & 0o777
    return found


def test_by_default_the_log_takes_at_most_three_quarters_of_the_disk(start: Start, folder: Path) -> None:
    store = start().broker.running.context.store
    assert store.options.retention_bytes == shutil.disk_usage(folder).total * 3 // 4


def test_everything_survives_a_clean_restart(start: Start) -> None:
    running = start()
    raw = running.connect()
    raw.create("Ordered", 2, order="true")
    for i in range(10):
        raw.send("Ordered", b"%d" % i, queue=1, stamp=f"p.3.{i}")
    raw.commit(4, topic="Ordered", queue=1)
    lease = raw.lane_lock("a", "Ordered").lane_leases[0]
    running.restart()
    raw = running.connect()
    assert bodies(raw.read("Ordered", queue=1)) == [b"%d" % i for i in range(10)]
    assert raw.committed("Ordered", 1) == 4
    assert raw.send("Ordered", queue=1, stamp="p.3.9").ext["laneDuplicate"] == "true"
    assert raw.lane_lock("a", "Ordered").lane_leases[0].epoch == lease.epoch
    assert b"orderTopicConf" in raw.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Ordered"}).body


def test_a_stop_that_cannot_save_offsets_is_not_marked_as_clean(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    raw = running.connect()
    raw.send("T")

    def full(*_: object, **__: object) -> None:
        raise WriteFailed("no space left")

    with monkeypatch.context() as failing:
        failing.setattr(ProgressRows, "save", full)
        raw.commit(1)
        with pytest.raises(WriteFailed):
            running.stop()
    caplog.clear()
    again = start()
    assert "recovered after an unclean stop" in caplog.text
    assert bodies(again.connect().read("T")) != []


@pytest.mark.slow
def test_start_takes_under_a_second_after_a_clean_stop_with_200k_messages(start: Start) -> None:
    running = start()
    fill(running.connect(), 200_000)
    running.stop()
    begin = time.process_time()  # of this process, which contains the broker, whatever else is busy
    again = start()
    took = time.process_time() - begin
    assert again.connect().bounds("T") == (0, 200_000)
    assert took < 1.0


def test_a_stopping_broker_finishes_accepted_requests_and_accepts_no_others(start: Start) -> None:
    """A producer that never pauses must not keep the broker from stopping."""
    running = start()
    raw = running.connect()
    raw.create("T")
    gate = Gate(running)
    accepted = raw.post_send("T", b"accepted")
    raw.bounds("T")
    running._clients.clear()
    stopping = threading.Thread(target=running.stop)
    stopping.start()
    while running.call(lambda: running.broker.running.server._listener is not None):
        pass
    too_late = raw.post_send("T", b"too late")
    gate.open()
    stopping.join()
    assert raw.is_closed_by_broker()
    assert accepted in raw.answered()
    assert too_late not in raw.answered()
    raw.close()
    assert bodies(start().connect().read("T")) == [b"accepted"]


def test_stop_answers_held_pulls(start: Start) -> None:
    running = start()
    raw = running.connect()
    raw.create("T")
    held = raw.post_pull("T", 0, hold=20_000)
    raw.bounds("T")
    running._clients.clear()
    running.stop()
    assert raw.answer(held).code == 19
    raw.close()


def test_slow_reader_does_not_keep_the_broker_from_stopping(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanemq.net.serving.peer.CLOSE_SECONDS", 0.1)
    running = start()
    raw = running.connect()
    raw.send("T", bytes(4_000_000))
    for _ in range(20):
        raw.post_pull("T", 0, laneMaxBytes="4000000")
    running._clients.clear()
    running.stop()
    raw.close()


def test_torn_tail_is_cut_and_logged(start: Start, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    running = start()
    raw = running.connect()
    for i in range(3):
        raw.send("T", b"%d" % i)
    image = running.crash_image(folder / "image")
    running.stop()
    segment = max((image / "log").iterdir())
    with segment.open("ab") as file:
        file.write(segment.read_bytes()[:70])
    again = start(image)
    assert "70 torn bytes cut" in caplog.text
    raw = again.connect()
    assert bodies(raw.read("T")) == [b"0", b"1", b"2"]
    assert raw.send("T", b"3").ext["queueOffset"] == "3"


@pytest.mark.slow
@pytest.mark.row("A117")
def test_kill_under_load_keeps_every_acknowledged_message_in_order(start_process: StartProcess) -> None:
    acknowledged = 0
    for round_number in range(3):
        process = start_process()
        acknowledged = stream_until_killed(process, acknowledged)
        assert acknowledged > 50 * (round_number + 1)
    process = start_process()
    with RawClient(process.address) as raw:
        found = [int(body) for body in bodies(raw.read("T"))]
        assert found[:acknowledged] == list(range(acknowledged))
        assert found == list(range(len(found))), "no gap, no repeat, in order"
        if found:
            last = len(found) - 1
            assert raw.send("T", stamp=f"p.0.{last}").ext["laneDuplicate"] == "true"
            assert raw.send("T", stamp=f"p.0.{last + 2}").code == 4101
        assert raw.send("T", b"%d" % len(found), stamp=f"p.0.{len(found)}").code == 0
    assert process.stop() == 0


def stream_until_killed(process: BrokerProcess, start_at: int) -> int:
    """Sends with a window of 20 and kills the broker in the middle; how many are acknowledged in all.

    After a kill the producer does not know what was stored, so it repeats from the first unacknowledged one.
    """
    with RawClient(process.address) as raw:
        waiting: list[int] = []
        done = start_at
        for number in itertools.count(start_at):
            waiting.append(raw.post_send("T", b"%d" % number, stamp=f"p.0.{number}"))
            if len(waiting) < 20:
                continue
            assert raw.answer(waiting.pop(0)).code == 0
            done += 1
            if done - start_at == 80:
                process.kill()
                break
        try:
            for opaque in waiting:
                assert raw.answer(opaque).code == 0
                done += 1
        except EOFError:
            pass
    return done


def test_a_recovered_broker_equals_one_that_never_crashed(start: Start, folder: Path) -> None:
    running = start(clock=ManualClock())
    raw = running.connect()
    for i in range(20):
        raw.send("T", b"%d" % i, queue=i % 4, stamp=f"p.0.{i // 4}")
    raw.commit(3)
    running.advance(1_000)
    image = running.crash_image(folder / "image")
    again = start(image).connect()
    assert [bodies(again.read("T", queue=q)) for q in range(4)] == [bodies(raw.read("T", queue=q)) for q in range(4)]
    assert again.committed() == 3


def fill(raw: RawClient, count: int) -> None:
    step = 1000
    item = (0, b"x" * 20, encode_properties({"TAGS": "a"}))
    body = encode_batch([item] * step)
    waiting = [raw.post(RequestCode.SEND_BATCH_MESSAGE, send_ext("T", batch=True), body) for _ in range(count // step)]
    assert all(raw.answer(opaque).code == 0 for opaque in waiting)


def test_folder_of_a_stopped_broker_can_be_moved(start: Start, folder: Path) -> None:
    running = start()
    running.connect().send("T", b"here")
    running.stop()
    shutil.move(folder / "data", folder / "elsewhere")
    assert bodies(start(folder / "elsewhere").connect().read("T")) == [b"here"]


@pytest.mark.slow
def test_a_kill_loses_no_answered_epoch_or_stamp(start_process: StartProcess) -> None:
    epochs = []
    for number, owner in enumerate(("a", "b", "c")):
        process = start_process()
        with RawClient(process.address) as raw:
            raw.create("T")
            assert raw.send("T", stamp=f"p.1.{number}").ext["queueOffset"] == str(number)
            assert raw.send("T", stamp=f"p.1.{number}").ext["laneDuplicate"] == "true"
            assert raw.send("T", stamp="p.0.9").code == 4102
            epochs.append(raw.lane_lock(owner).lane_leases[0].epoch)
            raw.unlock(owner)
            process.kill()
    assert epochs == [1, 2, 3]
