"""Stamps over the wire: repeats are answered, gaps and replaced producers refused, through restarts and crashes."""

from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, bodies
from tests.broker.running import Gate, ManualClock, RunningBroker

from lanemq.wire.codes import RequestCode, ResponseCode


def stamped(raw: RawClient, first: int, count: int, producer: str = "p", epoch: int = 0) -> "object":
    items = [(b"%d" % n, {"LANE_STAMP": f"{producer}.{epoch}.{n}"}) for n in range(first, first + count)]
    return raw.send_batch("T", items)


def test_repeat_is_answered_with_its_first_offset(raw: RawClient) -> None:
    raw.send("T", b"other producer")
    first = raw.send("T", b"a", stamp="p.0.0")
    again = raw.send("T", b"a", stamp="p.0.0")
    assert (again.code, again.ext["queueOffset"], again.ext["laneDuplicate"]) == (0, first.ext["queueOffset"], "true")
    assert bodies(raw.read("T")) == [b"other producer", b"a"]


def test_gap_and_older_epoch_are_refused(raw: RawClient) -> None:
    raw.send("T", stamp="p.5.0")
    gap = raw.send("T", stamp="p.5.2")
    assert (gap.code, gap.ext["laneExpected"]) == (ResponseCode.SEQUENCE_GAP, "1")
    assert raw.send("T", stamp="p.4.0").code == ResponseCode.PRODUCER_FENCED
    assert raw.bounds("T") == (0, 1)


def test_stamps_count_per_queue(raw: RawClient) -> None:
    assert [raw.send("T", queue=q, stamp="p.0.0").code for q in (0, 1)] == [0, 0]
    assert raw.send("T", queue=2, stamp="p.0.1").code == ResponseCode.SEQUENCE_GAP


def test_batch_repeated_in_part_stores_only_what_is_new(raw: RawClient) -> None:
    stamped(raw, 0, 5)
    assert stamped(raw, 3, 4).code == 0  # type: ignore[attr-defined]
    assert stamped(raw, 0, 7).ext["laneDuplicate"] == "true"  # type: ignore[attr-defined]
    assert bodies(raw.read("T")) == [b"%d" % n for n in range(7)]


@pytest.mark.parametrize("numbers", [[0, 2], [0, 2, 2], [1, 0], [0, None], [None, 0], [0, 5, 2]])
def test_batch_whose_stamps_do_not_follow_is_refused(raw: RawClient, numbers: list[int | None]) -> None:
    items = [(b"x", {} if n is None else {"LANE_STAMP": f"p.0.{n}"}) for n in numbers]
    assert raw.send_batch("T", items).code == ResponseCode.MESSAGE_ILLEGAL
    assert raw.bounds("T") == (0, 0)


def test_repeat_is_answered_only_after_its_first_copy_is_on_disk(broker: RunningBroker) -> None:
    first, second = broker.connect(), broker.connect()
    first.create("T")
    gate = Gate(broker)
    one = first.post_send("T", stamp="p.0.0")
    first.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    two = second.post_send("T", stamp="p.0.0")
    second.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert two not in second.answered()
    gate.open()
    assert first.answer(one).code == 0
    assert second.answer(two).ext["laneDuplicate"] == "true"


def test_stamps_survive_a_restart(start: Start) -> None:
    running = start()
    stamped(running.connect(), 0, 10)
    running.restart()
    check_stamps(running.connect())


@pytest.mark.parametrize("checkpointed", [False, True])
def test_stamps_survive_a_crash(start: Start, folder: Path, checkpointed: bool) -> None:
    """From the log alone, or from a checkpoint and the log after it."""
    running = start(clock=ManualClock())
    raw = running.connect()
    stamped(raw, 0, 6)
    if checkpointed:
        running.advance(10_000)
        assert running.broker.running.context.state.producers()
    stamped(raw, 6, 4)
    check_stamps(start(running.crash_image(folder / "image")).connect())


def test_stamps_survive_two_crashes_in_a_row(start: Start, folder: Path) -> None:
    """Recovery writes a checkpoint after the records that it read, so it must contain their stamps."""
    first = start(folder / "first")
    stamped(first.connect(), 0, 10)
    second = start(first.crash_image(folder / "second"))
    third = start(second.crash_image(folder / "third"))
    check_stamps(third.connect())


def check_stamps(raw: RawClient) -> None:
    again = raw.send("T", stamp="p.0.9")
    assert (again.code, again.ext["queueOffset"], again.ext["laneDuplicate"]) == (0, "9", "true")
    assert raw.send("T", stamp="p.0.11").code == ResponseCode.SEQUENCE_GAP
    assert raw.send("T", stamp="p.0.10").ext["queueOffset"] == "10"
    raw.send("T", stamp="p.1.0")
    assert raw.send("T", stamp="p.0.11").code == ResponseCode.PRODUCER_FENCED


def test_delayed_message_counts_in_the_queue_it_was_sent_to(broker: RunningBroker) -> None:
    """It is stored in another queue, in which every delayed message would be a gap."""
    raw = broker.connect()
    raw.send("T", stamp="p.0.0", queue=1)
    delayed = raw.send("T", b"later", stamp="p.0.1", queue=1, properties={"DELAY": "3"})
    assert (delayed.code, delayed.ext["queueId"]) == (0, "1")
    assert raw.send("T", stamp="p.0.1", queue=1, properties={"DELAY": "3"}).ext["laneDuplicate"] == "true"
    assert raw.send("T", stamp="p.0.2", queue=1).code == 0


def test_delayed_message_is_remembered_after_a_crash(start: Start, folder: Path) -> None:
    running = start(clock=ManualClock())
    raw = running.connect()
    raw.send("T", stamp="p.0.0", queue=1)
    raw.send("T", b"later", stamp="p.0.1", queue=1, properties={"DELAY": "3"})
    again = start(running.crash_image(folder / "image"), clock=running.clock).connect()
    repeat = again.send("T", b"later", stamp="p.0.1", queue=1, properties={"DELAY": "3"})
    assert repeat.ext["laneDuplicate"] == "true"
    assert again.send("T", stamp="p.0.2", queue=1).code == 0


def test_delivery_of_a_delayed_message_does_not_count_again(start: Start, folder: Path) -> None:
    """After a crash, the copy's stamp would make the producer's next messages look like repeats."""
    running = start(clock=ManualClock())
    raw = running.connect()
    raw.send("T", b"later", stamp="p.0.0", properties={"DELAY": "1"})
    raw.send("T", b"now", stamp="p.0.1")
    running.advance(1_000)
    found = raw.read("T")
    assert bodies(found) == [b"now", b"later"]
    assert "LANE_STAMP" not in found[1].properties
    again = start(running.crash_image(folder / "image"), clock=running.clock).connect()
    assert again.send("T", b"now", stamp="p.0.1").ext["laneDuplicate"] == "true"
    assert again.send("T", b"next", stamp="p.0.2").code == 0


def test_retry_copy_of_a_stamped_message_is_not_judged(broker: RunningBroker) -> None:
    """A stock consumer copies all properties; the original's stamp would be a gap in the retry topic."""
    raw = broker.connect()
    for n in range(3):
        raw.send("T", b"%d" % n, stamp=f"p.0.{n}")
    assert raw.send("%RETRY%g", b"2", stamp="p.0.2", times=17, most=16).code == 0
    (dead,) = raw.read("%DLQ%g")
    assert "LANE_STAMP" not in dead.properties


@pytest.mark.parametrize("checkpoint", ["gathered", "under way"])
def test_a_recreated_topic_has_no_producers(start: Start, folder: Path, checkpoint: str) -> None:
    """Even if it was deleted during a checkpoint with its producers, followed by a crash."""
    running = start(clock=ManualClock())
    raw = running.connect()
    raw.create("T")
    stamped(raw, 0, 5)
    gate = Gate(running)
    assert running.clock is not None
    running.clock.passed += 10_000
    late = raw.post_send("Other") if checkpoint == "gathered" else 0
    raw.bounds("T")
    running.call(lambda: running.broker.running.housekeeping.tick())
    deleted = raw.post(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    raw.bounds("T")
    gate.open()
    assert raw.answer(deleted).code == 0
    if late:
        assert raw.answer(late).code == 0
        running.tick()
    raw.create("T")
    assert "laneDuplicate" not in raw.send("T", b"new", stamp="p.0.0").ext
    again = start(running.crash_image(folder / "image"), clock=running.clock).connect()
    assert "laneDuplicate" not in again.send("T", stamp="p.0.1").ext
    assert again.bounds("T") == (0, 2)
