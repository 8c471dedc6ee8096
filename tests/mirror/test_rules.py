"""Layout, properties and requests of copies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mirror.simulated_copy import queues

from lanemq.client.copies import CopyOrigin, OriginalPlace, origin_of, original_place, producer_id
from lanemq.client.producer.batches import PendingMessage
from lanemq.client.topic_route import TopicRoute, topic_route
from lanemq.core.sending.sharding import pick_queue
from lanemq.mirror.copying import MirrorOptions, _warn_of_equal_names
from lanemq.mirror.origin import copied_properties, mirror_name
from lanemq.mirror.queue_mapping import QueueMapping
from lanemq.mirror.shipping import MAX_BYTES, MAX_MESSAGES, Copy, requests
from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.wire.properties import decode_properties
from lanemq.wire.route_bodies import BrokerData, TopicRouteData


def test_with_equal_numbers_a_queue_goes_to_its_counterpart_which_is_where_the_hash_points() -> None:
    here, there = queues("from", 4), queues("b", 2) + queues("a", 2)
    mapping = QueueMapping(here, there)
    for number in range(50):
        key = f"order-{number}"
        assert mapping.queue_for(pick_queue(key, here), key) == pick_queue(key, there)
    assert mapping.queue_for(here[2], None) == there[2]


def test_with_other_numbers_a_key_goes_where_the_target_puts_it() -> None:
    here, there = queues("from", 4), queues("to", 3)
    mapping = QueueMapping(here, there)
    assert {mapping.queue_for(each, "order-7") for each in here} == {pick_queue("order-7", there)}
    assert [mapping.queue_for(each, None) for each in here] == [there[0], there[1], there[2], there[0]]


def test_a_copy_keeps_what_its_sender_set_and_says_where_it_was_read() -> None:
    source = queues("from", 9)[8]
    before = "KEYS\x01k1 k2\x02LANE_STAMP\x01p.1.7\x02TAGS\x01paid\x02DELAY\x013\x02color\x01red"
    text = copied_properties(before, "move", 41, OriginalPlace(source, 5000, 77))
    assert decode_properties(text) == {
        "KEYS": "k1 k2", "TAGS": "paid", "color": "red", "LANE_ORIGIN": "move:8:41:from",
        "LANE_PLACE": f"8:5000:77:{source.topic}:from",
    }  # fmt: skip
    assert origin_of(text, source.topic) == CopyOrigin("move", source, 41)
    assert text.endswith("\x02")


def test_a_copy_of_a_copy_names_the_last_origin_only() -> None:
    (first,), (second,) = queues("from", 1), queues("between", 1)
    text = copied_properties("", "one", 1, OriginalPlace(first, 10, 5))
    text = copied_properties(stamped(text, "one", first), "two", 2, OriginalPlace(second, 20, 6))
    assert origin_of(text, first.topic) == CopyOrigin("two", second, 2)
    assert text.count("LANE_ORIGIN") == text.count("LANE_PLACE") == 1


def test_a_copy_of_a_copy_has_the_place_of_the_message_that_was_sent() -> None:
    (first,), (second,) = queues("from", 1), queues("between", 1)
    sent = OriginalPlace(first, 10, 5)
    text = stamped(copied_properties("", "one", 1, sent), "one", first)
    text = stamped(copied_properties(text, "two", 2, OriginalPlace(second, 20, 6)), "two", second)
    assert original_place(text, first.topic) == sent


def test_a_place_is_believed_only_if_a_mirror_wrote_it() -> None:
    """A program may send a message on with its properties: that is another message, at another place."""
    (source,) = queues("from", 1)
    text = copied_properties("", "move", 1, OriginalPlace(source, 10, 5))
    assert original_place(stamped(text, "move", source), source.topic) is not None
    assert original_place(text, source.topic) is None
    assert original_place(f"{text}LANE_STAMP\x01p1.1.0\x02", source.topic) is None
    assert original_place(stamped(text, "move", source), "another-topic") is None
    for odd in ("LANE_PLACE\x01nonsense\x02", "LANE_PLACE\x011:2:3:t:b\x02LANE_ORIGIN\x01odd\x02"):
        assert original_place(stamped(odd, "move", source), source.topic) is None


def stamped(text: str, mirror: str, source: MessageQueue) -> str:
    return f"{text}LANE_STAMP\x01{producer_id(mirror, source)}.1.0\x02"


@pytest.mark.parametrize(("name", "warned"), [("lanemq", True), ("broker-a", False)])
def test_a_mirror_warns_if_both_sides_have_a_broker_of_one_name(
    caplog: pytest.LogCaptureFixture, name: str, warned: bool
) -> None:
    """`once` could not tell their queues apart."""

    def route(broker: str) -> TopicRoute:
        return topic_route("orders", TopicRouteData(broker_datas=[BrokerData(broker_name=broker)]))

    options = MirrorOptions(source="a:1", target="b:1", topics=("orders",))
    _warn_of_equal_names(options, [(route("lanemq"), route(name))])
    assert ("both have a broker named lanemq" in caplog.text) is warned


def test_both_directions_have_one_name() -> None:
    assert mirror_name("a:1;b:1", "c:1") == mirror_name("c:1", "b:1;a:1") != mirror_name("a:1", "c:1")


@given(st.lists(st.tuples(st.integers(1, MAX_BYTES), st.booleans()), max_size=40))
def test_requests_keep_the_order_and_the_limits_and_compressed_bodies_travel_alone(
    sent: list[tuple[int, bool]],
) -> None:
    copies = [
        Copy(PendingMessage(b"", "", "", alone=alone, size=size), number, 0)
        for number, (size, alone) in enumerate(sent)
    ]
    made = list(requests(copies))
    assert [copy for request in made for copy in request] == copies
    for request in made:
        assert len(request) <= MAX_MESSAGES
        assert len(request) == 1 or sum(copy.message.size for copy in request) <= MAX_BYTES
        assert len(request) == 1 or not any(copy.message.alone for copy in request)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topics": ()}, "at least one topic"),
        ({"topics": ("%RETRY%billing",)}, "belongs to the broker or to a group's retries"),
        ({"topics": ("SCHEDULE_TOPIC_XXXX",)}, "belongs to the broker"),
        ({"topics": ("orders",), "target": "a:1"}, "onto itself"),
    ],
)
def test_what_cannot_be_mirrored_is_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        MirrorOptions(**{"source": "a:1", "target": "b:1", **given})  # type: ignore[arg-type]
