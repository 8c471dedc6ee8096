"""Options and columns of other sources in our words, for people who bring a query along.

The rule guarded here: whoever writes an option or a column of Spark's Kafka source, or a setting of RocketMQ's clients,
is told its name here, or why there is none. The tables in docs/reference/spark.md say the same.
"""

from typing import Final

_KAFKA: Final = {
    "kafka.bootstrap.servers": "use servers",
    "subscribe": "use topic",
    "subscribePattern": "use topicPattern",
    "assign": "left out; single queues are a matter of group, or of startingOffsets and endingOffsets",
    "startingOffsetsByTimestampStrategy": "left out; a time behind the last message always means the end of the queue",
    "endingOffsetsByTimestampStrategy": "left out; a time behind the last message always means the end of the queue",
    "maxRecordsPerPartition": "left out; it would split a queue over tasks. Limit the batch with maxOffsetsPerTrigger",
    "kafka.group.id": "use group",
    "groupIdPrefix": "left out; a query without group is nobody's member and stores no offsets",
    "includeHeaders": "use columns; a message's headers are the column properties",
    "fetchOffset.numRetries": "use brokerWait, a time instead of a number of attempts",
    "fetchOffset.retryIntervalMs": "use brokerWait, a time instead of a number of attempts",
    "kafkaConsumer.pollTimeoutMs": "use brokerWait",
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.enable.auto.commit": "left out; the checkpoint is the truth, and with group offsets are stored after it",
    "kafka.max.poll.records": "use maxOffsetsPerTrigger",
    "kafka.security.protocol": "use tls",
    "kafka.ssl.*": "use tls.ca, tls.cert and tls.key",
    "kafka.sasl.*": "use accessKey and secretKey",
    "kafka.*": "left out; settings of Kafka's client mean nothing to RocketMQ's protocol",
}
_ROCKETMQ: Final = {
    "nameServer": "use servers",
    "nameServerAddr": "use servers",
    "namesrvAddr": "use servers",
    "consumerGroup": "use group",
    "subExpression": "use tags",
}

FOREIGN: Final = _KAFKA | _ROCKETMQ
"""What to write instead of an option that does not exist here, by its name elsewhere."""

_LOWER: Final = {name.lower(): said for name, said in FOREIGN.items()}
"""A name that ends with `*` stands for all that begin like it; the first such counts."""

_COLUMNS: Final = {
    "partition": "queue_id",
    "offset": "queue_offset",
    "timestamp": "store_timestamp",
    "timestampType": "store_timestamp, or born_timestamp for the sender's time",
    "headers": "properties",
    "body": "value",
    "msgId": "message_id",
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "bornTimestamp": "born_timestamp",
    "storeTimestamp": "store_timestamp",
    "brokerName": "broker",
}
"""Columns of Spark's Kafka source, and fields of RocketMQ's messages, by their names there."""

_LOWER_COLUMNS: Final = {name.lower(): ours for name, ours in _COLUMNS.items()}


def column_in_our_words(name: str) -> str | None:
    """The column that holds here what another source calls `name`; None if nobody knows it."""
    return _LOWER_COLUMNS.get(name.lower())


def in_our_words(name: str) -> str | None:
    """What to say about an option that is another source's; None if nobody knows it."""
    lower = name.lower()
    families = (family for family in _LOWER if family.endswith("*") and lower.startswith(family[:-1]))
    return _LOWER.get(lower) or next((_LOWER[family] for family in families), None)
