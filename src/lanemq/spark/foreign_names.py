"""Options and columns of other sources, with their equivalents here.

An unknown option or column is refused; if Spark's Kafka source or RocketMQ's clients have it, the error names the
equivalent, or says why there is none. docs/reference/spark.md has the same tables.
"""

from typing import Final

_KAFKA: Final = {
    "kafka.bootstrap.servers": "use servers",
    "subscribe": "use topic",
    "subscribePattern": "use topicPattern",
    "assign": "there is no equivalent; use group to share queues, or startingOffsets and endingOffsets per queue",
    "startingOffsetsByTimestampStrategy": "there is no equivalent; a time after the last message means the queue's end",
    "endingOffsetsByTimestampStrategy": "there is no equivalent; a time after the last message means the queue's end",
    "maxRecordsPerPartition": "there is no equivalent, as it would split a queue over tasks; use maxOffsetsPerTrigger",
    "kafka.group.id": "use group",
    "groupIdPrefix": "there is no equivalent; a query without group joins no group and stores no offsets",
    "includeHeaders": "use columns=*; a message's headers are in the column properties",
    "fetchOffset.numRetries": "use brokerWait, a duration instead of a number of attempts",
    "fetchOffset.retryIntervalMs": "use brokerWait, a duration instead of a number of attempts",
    "kafkaConsumer.pollTimeoutMs": "use brokerWait",
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.enable.auto.commit": "there is no equivalent; the checkpoint decides, and group stores offsets after it",
    "kafka.max.poll.records": "use maxOffsetsPerTrigger",
    "kafka.security.protocol": "use tls",
    "kafka.ssl.*": "use tls.ca, tls.cert and tls.key",
    "kafka.sasl.*": "use accessKey and secretKey",
    "kafka.*": "there is no equivalent; settings of Kafka's client do not apply to RocketMQ's protocol",
}
_ROCKETMQ: Final = {
    "nameServer": "use servers",
    "nameServerAddr": "use servers",
    "namesrvAddr": "use servers",
    "consumerGroup": "use group",
    "subExpression": "use tags",
}

FOREIGN: Final = _KAFKA | _ROCKETMQ
"""By the option's name elsewhere: what to use here. A name that ends with `*` is a prefix; the first match counts."""

_LOWER: Final = {name.lower(): advice for name, advice in FOREIGN.items()}

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

_LOWER_COLUMNS: Final = {name.lower(): column for name, column in _COLUMNS.items()}


def equivalent_column(name: str) -> str | None:
    """The column here that holds what another source calls `name`; None if the name is unknown."""
    return _LOWER_COLUMNS.get(name.lower())


def equivalent_option(name: str) -> str | None:
    """What to use here instead of another source's option; None if the option is unknown."""
    lower = name.lower()
    prefixes = (prefix for prefix in _LOWER if prefix.endswith("*") and lower.startswith(prefix[:-1]))
    return _LOWER.get(lower) or next((_LOWER[prefix] for prefix in prefixes), None)
