"""Start, stop, crash, start again."""

import itertools
import shutil
import threading
import time
from pathlib import Path

import pytest
from tests.broker.conftest import Start, StartProcess
from tests.broker.running import Gate, HandClock, Process
from tests.broker.talk import Talk, bodies, send_ext
from tests.wire.encoding import encode_batch

from lanemq.model.errors import LogInUse
from lanemq.wire.codes import RequestCode
from lanemq.wire.properties import encode_properties


def test_second_broker_on_a_folder_is_refused_with_the_reason(start: Start, folder: Path) -> None:
    first = start()
    with pytest.raises(LogInUse, match="used by another broker"):
        start()
    assert first.talk().send("T").code == 0


def test_second_process_on_a_folder_says_why_and_ends(start_process: StartProcess) -> None:
    start_process()
    with pytest.raises(AssertionError, match="used by another broker"):
        start_process()


def test_everything_survives_a_clean_restart(start: Start) -> None:
    running = start()
    talk = running.talk()
    talk.create("Ordered", 2, order="true")
    for i in range(10):
        talk.send("Ordered", b"%d" % i, queue=1, stamp=f"p.3.{i}")
    talk.commit(4, topic="Ordered", queue=1)
    lease = talk.lane_lock("a", "Ordered").lane_leases[0]
    running.restart()
    talk = running.talk()
    assert bodies(talk.read("Ordered", queue=1)) == [b"%d" % i for i in range(10)]
    assert talk.committed("Ordered", 1) == 4
    assert talk.send("Ordered", queue=1, stamp="p.3.9").ext["laneDuplicate"] == "true"
    assert talk.lane_lock("a", "Ordered").lane_leases[0].epoch == lease.epoch
    assert b"orderTopicConf" in talk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Ordered"}).body


@pytest.mark.slow
def test_start_takes_under_a_second_after_a_clean_stop_with_200k_messages(start: Start) -> None:
    running = start()
    fill(running.talk(), 200_000)
    running.stop()
    begin = time.process_time()  # of the broker, which is in this process; not of whoever else is busy
    again = start()
    took = time.process_time() - begin
    assert again.talk().bounds("T") == (0, 200_000)
    assert took < 1.0


def test_stopping_broker_finishes_what_it_accepted_and_takes_nothing_new(start: Start) -> None:
    """A producer that never pauses may not keep it from stopping."""
    running = start()
    talk = running.talk()
    talk.create("T")
    gate = Gate(running)
    accepted = talk.post_send("T", b"accepted")
    talk.bounds("T")
    running._talks.clear()
    stopping = threading.Thread(target=running.stop)
    stopping.start()
    while running.call(lambda: running.broker._server.is_accepting):
        pass
    too_late = talk.post_send("T", b"too late")
    gate.open()
    stopping.join()
    assert talk.is_closed_by_broker()
    assert accepted in talk.answered()
    assert too_late not in talk.answered()
    talk.close()
    assert bodies(start().talk().read("T")) == [b"accepted"]


def test_stop_answers_held_pulls(start: Start) -> None:
    running = start()
    talk = running.talk()
    talk.create("T")
    held = talk.post_pull("T", 0, hold=20_000)
    talk.bounds("T")
    running._talks.clear()
    running.stop()
    assert talk.answer(held).code == 19
    talk.close()


def test_slow_reader_does_not_keep_the_broker_from_stopping(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanemq.net.server.CLOSE_SECONDS", 0.1)
    running = start()
    talk = running.talk()
    talk.send("T", bytes(4_000_000))
    for _ in range(20):
        talk.post_pull("T", 0, laneMaxBytes="4000000")
    running._talks.clear()
    running.stop()
    talk.close()


def test_torn_tail_is_cut_and_logged(start: Start, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    running = start()
    talk = running.talk()
    for i in range(3):
        talk.send("T", b"%d" % i)
    image = running.crash_image(folder / "image")
    running.stop()
    segment = max((image / "log").iterdir())
    with segment.open("ab") as file:
        file.write(segment.read_bytes()[:70])
    again = start(image)
    assert "70 torn bytes cut" in caplog.text
    talk = again.talk()
    assert bodies(talk.read("T")) == [b"0", b"1", b"2"]
    assert talk.send("T", b"3").ext["queueOffset"] == "3"


@pytest.mark.slow
@pytest.mark.row("A117")
def test_kill_under_load_keeps_every_acknowledged_message_in_order(start_process: StartProcess) -> None:
    acknowledged = 0
    for round_number in range(3):
        process = start_process()
        acknowledged = stream_until_killed(process, acknowledged)
        assert acknowledged > 50 * (round_number + 1)
    process = start_process()
    with Talk(process.address) as talk:
        found = [int(body) for body in bodies(talk.read("T"))]
        assert found[:acknowledged] == list(range(acknowledged))
        assert found == list(range(len(found))), "no gap, no repeat, in order"
        if found:
            last = len(found) - 1
            assert talk.send("T", stamp=f"p.0.{last}").ext["laneDuplicate"] == "true"
            assert talk.send("T", stamp=f"p.0.{last + 2}").code == 4101
        assert talk.send("T", b"%d" % len(found), stamp=f"p.0.{len(found)}").code == 0
    assert process.stop() == 0


def stream_until_killed(process: Process, start_at: int) -> int:
    """Sends with a window of 20 and kills the broker in the middle; how many are acknowledged in all.

    After a kill the producer does not know what was stored, so it repeats from the first unacknowledged one.
    """
    with Talk(process.address) as talk:
        waiting: list[int] = []
        done = start_at
        for number in itertools.count(start_at):
            waiting.append(talk.post_send("T", b"%d" % number, stamp=f"p.0.{number}"))
            if len(waiting) < 20:
                continue
            assert talk.answer(waiting.pop(0)).code == 0
            done += 1
            if done - start_at == 80:
                process.kill()
                break
        try:
            for opaque in waiting:
                assert talk.answer(opaque).code == 0
                done += 1
        except EOFError:
            pass
    return done


def test_recovered_after_a_crash_is_the_same_as_never_crashed(start: Start, folder: Path) -> None:
    running = start(clock=HandClock())
    talk = running.talk()
    for i in range(20):
        talk.send("T", b"%d" % i, queue=i % 4, stamp=f"p.0.{i // 4}")
    talk.commit(3)
    running.advance(1_000)
    image = running.crash_image(folder / "image")
    again = start(image).talk()
    assert [bodies(again.read("T", queue=q)) for q in range(4)] == [bodies(talk.read("T", queue=q)) for q in range(4)]
    assert again.committed() == 3


def fill(talk: Talk, count: int) -> None:
    step = 1000
    item = (0, b"x" * 20, encode_properties({"TAGS": "a"}))
    body = encode_batch([item] * step)
    waiting = [talk.post(RequestCode.SEND_BATCH_MESSAGE, send_ext("T", batch=True), body) for _ in range(count // step)]
    assert all(talk.answer(opaque).code == 0 for opaque in waiting)


def test_folder_of_a_stopped_broker_can_be_moved(start: Start, folder: Path) -> None:
    running = start()
    running.talk().send("T", b"here")
    running.stop()
    shutil.move(folder / "data", folder / "elsewhere")
    assert bodies(start(folder / "elsewhere").talk().read("T")) == [b"here"]


@pytest.mark.slow
def test_kill_forgets_neither_epochs_nor_stamps_that_were_answered(start_process: StartProcess) -> None:
    epochs = []
    for number, owner in enumerate(("a", "b", "c")):
        process = start_process()
        with Talk(process.address) as talk:
            talk.create("T")
            assert talk.send("T", stamp=f"p.1.{number}").ext["queueOffset"] == str(number)
            assert talk.send("T", stamp=f"p.1.{number}").ext["laneDuplicate"] == "true"
            assert talk.send("T", stamp="p.0.9").code == 4102
            epochs.append(talk.lane_lock(owner).lane_leases[0].epoch)
            talk.unlock(owner)
            process.kill()
    assert epochs == [1, 2, 3]
