"""How the driver handles incomplete answers of brokers."""

import pytest
from tests.spark.spark_driver import send

from lanemq.client.admin.admin import Admin
from lanemq.model.errors import ConnectFailed, InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.spark.options import parse_read_options
from lanemq.spark.read.brokers import Brokers
from lanemq.testing.embedded import EmbeddedBroker


def brokers_of(broker: EmbeddedBroker, topic: str, **more: str) -> Brokers:
    options = {"servers": broker.address, "topic": topic, "brokerWait": "200ms", **more}
    return Brokers(parse_read_options(options, streaming=True))


def test_the_query_waits_for_queues_of_an_unregistered_broker(broker: EmbeddedBroker, topic: str) -> None:
    """A name server forgets a broker that is down, so the rest of the answer is incomplete."""
    with brokers_of(broker, topic) as brokers:
        assert len(brokers.bounds()) == 2
        brokers.expect([MessageQueue(topic, "broker-b", 0)])
        with pytest.raises(ConnectFailed, match=r"broker-b of topic .* is not registered"):
            brokers.bounds()


def test_a_topic_of_an_unregistered_broker_still_exists(broker: EmbeddedBroker) -> None:
    with brokers_of(broker, "nowhere-to-be-seen") as brokers:
        brokers.expect([MessageQueue("nowhere-to-be-seen", "broker-b", 0)])
        with pytest.raises(ConnectFailed, match="broker-b"):
            brokers.bounds()


def test_a_topic_that_its_broker_no_longer_holds_is_deleted(broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(3))
    with brokers_of(broker, topic) as brokers:
        assert brokers.bounds()
        with Admin(broker.address) as admin:
            admin.delete_topic(topic)
        assert brokers.bounds() == {}


@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
@pytest.mark.parametrize(
    "named", ['{"ordres": {"0": 7}}', '{"TOPIC": {"broker-x/0": 7}}', '{"TOPIC": {"9": 7, "0": 1}}']
)
def test_an_offset_for_an_unknown_queue_is_refused(broker: EmbeddedBroker, topic: str, option: str, named: str) -> None:
    """If it were ignored, a misspelt name would make the query read everything or nothing."""
    options = {option: named.replace("TOPIC", topic)}
    with (
        brokers_of(broker, topic, **options) as brokers,
        pytest.raises(InvalidOption, match=rf"{option}: .* no queue (ordres|{topic} (broker-x/0|9)); it has {topic} l"),
    ):
        brokers.positions(brokers._options.start, brokers.existing_bounds())


@pytest.mark.parametrize("which", ["starting", "ending"])
def test_an_offset_past_the_end_is_refused_with_the_bounds_of_the_queue(
    broker: EmbeddedBroker, topic: str, which: str
) -> None:
    """Otherwise it would look like a topic that was created again, and be read from its beginning."""
    send(broker.address, topic, [0] * 4)
    given = {"servers": broker.address, "topic": topic, f"{which}Offsets": f'{{"{topic}": {{"0": 5, "1": 5}}}}'}
    options = parse_read_options(given, streaming=False)
    place = options.start if which == "starting" else options.end
    said = rf"{which}Offsets: .*{topic}.* has no offset 5: it holds 0 up to, not including, 4.*or -1 for its end"
    with Brokers(options) as brokers, pytest.raises(InvalidOption, match=said):
        brokers.positions(place, brokers.existing_bounds())


def test_an_offset_at_the_end_of_its_queue_is_the_next_message(broker: EmbeddedBroker, topic: str) -> None:
    with brokers_of(broker, topic, startingOffsets=f'{{"{topic}": {{"0": 0}}}}') as brokers:
        assert set(brokers.positions(brokers._options.start, brokers.existing_bounds()).values()) == {0}


@pytest.mark.parametrize("named", ["0", "lanemq/0"])
def test_a_queue_is_named_by_number_or_by_broker_and_number(broker: EmbeddedBroker, topic: str, named: str) -> None:
    send(broker.address, topic, range(30))
    with brokers_of(broker, topic, startingOffsets=f'{{"{topic}": {{"{named}": 2}}}}') as brokers:
        found = brokers.positions(brokers._options.start, brokers.existing_bounds())
    assert sorted(found.values()) == [0, 2]
