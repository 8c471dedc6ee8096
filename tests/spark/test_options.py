"""Wrong options are refused, with their name, before a query starts."""

import pytest

from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.spark.offsets import Bounds, LimitKind, resolve_offset
from lanemq.spark.options import parse_read_options

GOOD = {"servers": "localhost:9876", "topic": "orders"}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"servers": "host:port"}, "servers"),
        ({"topic": "or ders"}, "topic"),
        ({"topic": ","}, "topic"),
        ({"topicPattern": "o.*"}, "topic"),
        ({"startingOffsets": "first"}, "startingOffsets"),
        ({"startingOffsets": "{nonsense"}, "startingOffsets"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "startingOffsets"),
        ({"startingOffsets": '{"orders": {"x": 3}}'}, "startingOffsets"),
        ({"startingOffsets": '{"orders": 3}'}, "startingOffsets"),
        ({"startingOffsets": "committed"}, "startingOffsets"),
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "startingTimestamp"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"endingOffsets": "latest"}, "endingOffsets"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "minOffsetsPerTrigger"),
        ({"maxBytesPerTrigger": "-1"}, "maxBytesPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"onDamaged": "skip"}, "^onDamaged: 'skip' is not one of fail, null, raw"),
        ({"group": "no blanks"}, "group"),
        ({"tags": "a || "}, "tags"),
        ({"kafka.bootstrap.servers": "x"}, "kafka.bootstrap.servers"),
        ({"tls.ca": "missing.pem"}, "^tls.ca: tls ca missing.pem: cannot be read"),
        ({"tls.key": "missing.pem"}, "^tls.key: .*give both"),
        ({"tls.verify": "some"}, "^tls.verify='some': write full, ca or none"),
        ({"tls": "perhaps"}, "^tls: 'perhaps' is neither true nor false"),
        ({"tls": "false", "tls.ca": "x"}, "^tls.ca: contradicts tls=false"),
        ({"accessKey": "x"}, "^accessKey is set and secretKey is not"),
        ({"secretKeyFile": "missing"}, "^secretKeyFile: missing: cannot be read"),
        ({"secretKeyFile": "x", "secretKey": "y"}, "^secretKeyFile: contradicts secretKey"),
    ],
)
def test_a_wrong_option_is_named(wrong: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        parse_read_options({**GOOD, **wrong}, streaming=True)


@pytest.mark.parametrize("name", ["servers", "topic"])
def test_a_missing_option_is_named(name: str) -> None:
    with pytest.raises(InvalidOption, match=name):
        parse_read_options({key: value for key, value in GOOD.items() if key != name}, streaming=True)


def test_streaming_options_are_refused_in_batch_queries() -> None:
    for name, value in (("maxOffsetsPerTrigger", "5"), ("group", "g"), ("startingOffsets", "latest")):
        with pytest.raises(InvalidOption, match=name):
            parse_read_options({**GOOD, name: value}, streaming=False)


def test_option_names_are_case_insensitive() -> None:
    assert parse_read_options({"SERVERS": "h:1", "Topic": "a, b,a", "FAILONDATALOSS": "False"}, streaming=True) == (
        parse_read_options({"servers": "h:1", "topic": "a,b", "failOnDataLoss": "false"}, streaming=True)
    )


def test_a_group_does_not_say_where_a_query_starts() -> None:
    assert parse_read_options({**GOOD, "group": "g"}, streaming=True).start.kind is LimitKind.LATEST
    assert parse_read_options(GOOD, streaming=True).start.kind is LimitKind.LATEST
    assert parse_read_options(GOOD, streaming=False).start.kind is LimitKind.EARLIEST


def test_json_names_queues_with_or_without_their_broker() -> None:
    text = '{"orders": {"1": 5, "b/0": -1, "0": 9}}'
    limit = parse_read_options({**GOOD, "startingOffsets": text}, streaming=True).start
    bounds = Bounds(QueueOffset(2), QueueOffset(20))
    named = {broker: limit.given_for(MessageQueue("orders", broker, 0)) for broker in "ab"}
    assert named == {"a": 9, "b": -1}
    assert resolve_offset(-1, bounds) == 20
    assert resolve_offset(-2, bounds) == 2
    assert limit.given_for(MessageQueue("orders", "a", 2)) is None
