"""What a coordinator relies on about the log and the offsets of real Apache brokers: `make interop-coordinator`."""

import time
from pathlib import Path

from interop.coordinator.node import CoordinatorNode, coordinate
from interop.coordinator.test_coordinator import QUERY, UPDATE, all_handled, member, noted, topic_with
from interop.ports import ask, eventually
from lanemq import App, Message, Producer
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.coordinated import CoordinatedAdmin
from lanemq.wire.headers import SendHeader
from lanemq.wire.properties import encode_properties

SEND, RESET = 310, 222


def test_offsets_are_copied_and_what_mqadmin_sets_is_noticed(
    address: str, broker: int, coordinator: CoordinatorNode, tmp_path: Path
) -> None:
    topic, group, notes = topic_with(address, "copied", 40), "copied", tmp_path / "notes"
    coordinate(address, group)
    with member(address, group, topic, notes):
        all_handled(notes, 40)
        with Admin(address) as admin:
            ends = {each["at"][0]: 0 for each in noted(notes)}
            for each in noted(notes):
                ends[each["at"][0]] = max(ends[each["at"][0]], each["at"][1] + 1)
            queue = min(ends)
            eventually(lambda: committed(broker, group, topic, queue) == ends[queue], 30, "the copied offset")
            assert admin.describe_group(group).lag == 0
        assert ask(broker, UPDATE, {**place(group, topic, queue), "commitOffset": "1"})[0] == 0
        log = coordinator.folder / "output"
        eventually(lambda: f"--topic {topic} --queue {queue} --to 1" in log.read_text(), 30, "the warning")
        assert committed(broker, group, topic, queue) == 1


def test_a_reset_by_the_broker_itself_is_noticed_too(
    address: str, broker: int, coordinator: CoordinatorNode, tmp_path: Path
) -> None:
    """As `mqadmin resetOffsetByTime` does since 5.0; a broker of 4.9 has no member to tell, and refuses."""
    topic, group, notes = topic_with(address, "reset", 40), "reset", tmp_path / "notes"
    coordinate(address, group)
    with member(address, group, topic, notes):
        all_handled(notes, 40)
        queue = noted(notes)[0]["at"][0]
        eventually(lambda: (committed(broker, group, topic, queue) or 0) > 1, 30, "the copied offset")
        code = ask(broker, RESET, {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"})[0]
        print("the broker's answer to a reset:", code, "offset:", committed(broker, group, topic, queue))
        if committed(broker, group, topic, queue) == 0:
            eventually(
                lambda: f"--queue {queue} --to 0" in (coordinator.folder / "output").read_text(), 30, "the warning"
            )
        time.sleep(6)  # longer than a copy takes
        print("offset after the next copy:", committed(broker, group, topic, queue))
    assert len(noted(notes)) == 40


def test_a_topic_that_was_created_anew_stops_its_group(
    address: str, broker: int, coordinator: CoordinatorNode, tmp_path: Path
) -> None:
    topic, group, notes = topic_with(address, "anew", 40), "anew", tmp_path / "notes"
    coordinate(address, group)
    with member(address, group, topic, notes):
        all_handled(notes, 40)
    with Admin(address) as admin:
        admin.delete_topic(topic)
    eventually(lambda: created(address, topic), 60, "the new topic")
    with Producer(address) as producer:
        for number in range(60):
            producer.send(topic, number, key=str(number % 10))
    again = tmp_path / "again"
    with member(address, group, topic, again), CoordinatedAdmin(address) as coordinated:
        out = again.with_suffix(".out")
        eventually(lambda: f"lanemq group compare {group}" in out.read_text(), 30, "the error")
        assert not noted(again)
        found = coordinated.compare(group)
        assert found.others
        assert all(each.same_below == 0 for each in found.others)
        coordinated.compare(group, apply=True)
        all_handled(again, 60)


def created(address: str, topic: str) -> bool:
    with Admin(address) as admin:
        return admin.ensure_topic(topic, 4, ordered=True)


def test_a_message_that_was_stored_twice_is_delivered_once(
    address: str, broker: int, coordinator: CoordinatorNode, tmp_path: Path
) -> None:
    topic, group, first, second = topic_with(address, "twice", 0), "twice", tmp_path / "first", tmp_path / "second"
    coordinate(address, group)
    for number in (0, 1, 2, 1):
        assert send(broker, topic, number) == 0
    with member(address, group, topic, first):
        all_handled(first, 3)
        with CoordinatedAdmin(address) as admin:
            eventually(lambda: admin.compare(group).compared, 30, "the report")
    for number in (2, 3):
        assert send(broker, topic, number) == 0
    with member(address, group, topic, second):
        all_handled(second, 1)
    assert [each["at"][1] for each in (*noted(first), *noted(second))] == [0, 1, 2, 5]


def test_delayed_and_retried_messages_are_no_repeats(address: str, coordinator: CoordinatorNode) -> None:
    """A broker stores them again with their stamp, behind newer messages of their producer."""
    topic, group = "again", "again"
    with Admin(address) as admin:
        admin.create_topic(topic, 1)
    coordinate(address, group)
    seen: list[tuple[int, int]] = []
    app = App(address, group=group)

    @app.concurrent(topic)
    def handle(message: Message) -> None:
        seen.append((message.value(), message.attempt))
        if message.value() == 1 and message.attempt == 1:
            raise ValueError("the first attempt fails")

    with Producer(address) as producer:
        producer.send(topic, 0, key="k", delay_level=2)
        for number in (1, 2, 3):
            producer.send(topic, number, key="k")
    app.start()
    eventually(lambda: len(seen) == 5, 60, "the delayed message, and the failed one again")
    app.stop()
    assert sorted(seen) == [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1)]


def send(broker: int, topic: str, number: int) -> int:
    properties = {"__SHARDINGKEY": "k", "LANE_STAMP": f"p.1.{number}", "UNIQ_KEY": f"id{number}"}
    header = SendHeader(
        producer_group="p", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0, sys_flag=0,
        born_timestamp=int(time.time() * 1000), flag=0, properties=encode_properties(properties), reconsume_times=0,
        batch=False,
    )  # fmt: skip
    return ask(broker, SEND, dict(header.to_ext()), b'"x"')[0]


def place(group: str, topic: str, queue: int) -> dict[str, str]:
    return {"consumerGroup": group, "topic": topic, "queueId": str(queue)}


def committed(broker: int, group: str, topic: str, queue: int) -> int | None:
    code, _, ext = ask(broker, QUERY, place(group, topic, queue))
    return int(ext["offset"]) if code == 0 else None
