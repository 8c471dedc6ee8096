"""What a message carries on the wire: properties, stamps, bodies large and small."""

import random
from typing import Any

import pytest
from tests.client.fake_broker import FakeBroker, Stored, serving
from tests.client.producer.producers import Open

from lanemq.client.producer.producer import Producer
from lanemq.model.errors import (
    InvalidOption,
    MessageTooLarge,
)

broker = serving()


def test_properties_are_those_of_rocketmqs_producer(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address, group="billing") as producer:
        receipt = producer.send(
            "metrics", {"a": 1}, key="k", tag="TagA", keys=["x", "y"], properties={"colour": "red"}, delay_level=3
        )
    (message,) = broker.everything("metrics")
    assert message.body == b'{"a":1}'
    stamp = message.properties.pop("LANE_STAMP")
    assert stamp.endswith(".1.0")
    assert message.properties == {
        "__SHARDINGKEY": "k",
        "UNIQ_KEY": receipt.message_id,
        "WAIT": "true",
        "TAGS": "TagA",
        "KEYS": "x y",
        "colour": "red",
        "DELAY": "3",
    }
    header = message.request
    assert (header.producer_group, header.topic, header.default_topic) == ("billing", "metrics", "")
    assert (header.default_topic_queue_nums, header.flag, header.sys_flag) == (4, 0, 0)
    assert (header.reconsume_times, header.unit_mode, header.broker_name) == (0, False, "fake")
    assert header.lane_client is not None


@pytest.mark.parametrize(
    "how", [{"properties": {"UNIQ_KEY": "x"}}, {"properties": {"LANE_STAMP": "x"}}, {"delay_level": 19}, {"key": ""}]
)
def test_property_that_lanemq_sets_itself_is_refused(broker: FakeBroker, kind: Open, how: dict[str, Any]) -> None:
    with kind(broker.address) as producer, pytest.raises(InvalidOption):
        producer.send("metrics", 1, **how)


def test_large_single_body_is_compressed_and_batches_are_not(broker: FakeBroker, kind: Open) -> None:
    body = b"lane" * 2000
    with kind(broker.address) as producer:
        producer.send("orders", body, key="k")
        producer.send_many("orders", [("k", body), ("k", body)])
    assert {message.body for message in broker.everything("orders")} == {body}
    assert next(header.sys_flag for header in broker.requests if not header.batch) == 0x301
    assert all(header.sys_flag == 0 for header in broker.requests if header.batch)


def test_body_of_four_mebibytes_arrives_and_one_byte_more_is_refused_locally(broker: FakeBroker, kind: Open) -> None:
    body = random.Random(1).randbytes(4 * 1024 * 1024)
    with kind(broker.address) as producer:
        producer.send("orders", body, key="k")
        with pytest.raises(MessageTooLarge, match="4194305 bytes, the limit is 4194304"):
            producer.send("orders", body + b"!", key="k")
    assert [message.body for message in broker.everything("orders")] == [body]


def stamps(messages: list[Stored]) -> list[str]:
    return [message.properties["LANE_STAMP"] for message in messages]


def test_stamps_of_a_queue_count_from_zero_without_a_gap(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        producer.send_many("orders", [("k", n) for n in range(50)])
    found = [each.split(".") for each in stamps(broker.everything("orders"))]
    assert [int(sequence) for _, _, sequence in found] == list(range(50))
    assert len({(producer, epoch) for producer, epoch, _ in found}) == 1


@pytest.mark.parametrize("wrong", [{"timeout": 5}, {"delay": 3}])
def test_an_argument_that_send_does_not_have_is_refused_by_name(broker: FakeBroker, wrong: dict[str, Any]) -> None:
    with (
        Producer(str(broker.address)) as producer,
        pytest.raises(InvalidOption, match=f"no argument '{next(iter(wrong))}'"),
    ):
        producer.send("orders", b"x", key="k", **wrong)


@pytest.mark.parametrize("wrong", [None, 5])
def test_messages_of_send_many_that_are_no_list_are_refused(broker: FakeBroker, wrong: Any) -> None:
    with Producer(str(broker.address)) as producer, pytest.raises(InvalidOption, match=r"write send_many\(topic, \["):
        producer.send_many("orders", wrong)
