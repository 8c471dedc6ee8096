"""The options of `format("lanemq")` for reading, checked before a query starts.

An option that is misspelt, out of range or contradicts another is an error that names it. Nothing is ignored
silently: a query that reads less, or elsewhere, than its author believes looks like data loss later.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, TypeVar

from lanemq.client.consumer.tag_filter import TagFilter, tag_filter
from lanemq.model.errors import InvalidOption, LaneError
from lanemq.model.names import check_group, check_topic
from lanemq.model.units import Millis
from lanemq.net.address import parse_addresses
from lanemq.net.security import OPEN, Security
from lanemq.spark.columns.damage import Damaged
from lanemq.spark.foreign_names import in_our_words
from lanemq.spark.places import Kind, Place, parse_place, parse_times
from lanemq.spark.security_options import SECURITY_OPTIONS, parse_security

T = TypeVar("T")
D = TypeVar("D")

DEFAULT_GROUP: Final = "lanemq-spark"
"""Under which queries without a group pull. It takes no leases and stores no offsets."""

ALL_TAGS: Final = tag_filter("*")
MAX_DELAY: Final = Millis(900_000)
"""Spark's Kafka source: 15 minutes."""
WAIT: Final = Millis(60_000)
CHUNK_BYTES: Final = 3 * 1024 * 1024
"""Below a full answer (`fetch.PULL_BYTES`), which then is a batch as it came. Larger, and answers are copied together;
much smaller, and rows pay for the batches that they are in."""

SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "queryname", "header"})


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a query reads, from where to where, and how fast."""

    servers: str
    topics: tuple[str, ...]
    topic_pattern: str | None
    start: Place
    end: Place
    group: str | None = None
    ordered: bool = True
    tags: TagFilter = ALL_TAGS
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = ()
    min_partitions: int = 0
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int = 0
    max_delay: Millis = MAX_DELAY
    wait: Millis = WAIT
    chunk_bytes: int = CHUNK_BYTES
    damaged: Damaged = Damaged.FAIL
    security: Security = OPEN

    @property
    def pull_group(self) -> str:
        return self.group or DEFAULT_GROUP

    @property
    def is_member(self) -> bool:
        """Whether the query takes leases like a consumer."""
        return self.group is not None and self.ordered

    def reads(self, topic: str) -> bool:
        """Whether the options name this topic, be it there or not."""
        pattern = self.topic_pattern
        return topic in self.topics if pattern is None else re.fullmatch(pattern, topic) is not None


def parse_read_options(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """The options of one query; `InvalidOption` names the first that cannot be used.

    `streaming` is None while Spark has not said which kind of query it will be.
    """
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(options)
    _refuse_for_batch(options, streaming)
    topics, pattern = _topics(options)
    group = _get(options, "group", check_group, None)
    ordered = _get(options, "ordered", _flag, True)
    _check_combinations(options, group, ordered)
    return ReadOptions(
        servers=_servers(options),
        topics=topics,
        topic_pattern=pattern,
        start=_start(options, streaming, group is not None and ordered),
        end=_end(options),
        group=group,
        ordered=ordered,
        tags=_get(options, "tags", tag_filter, ALL_TAGS),
        fail_on_data_loss=_get(options, "failOnDataLoss", _flag, True),
        columns=_get(options, "columns", _names, ()),
        min_partitions=_get(options, "minPartitions", _positive, 0),
        max_offsets=_get(options, "maxOffsetsPerTrigger", _positive, None),
        max_bytes=_get(options, "maxBytesPerTrigger", _positive, None),
        min_offsets=_get(options, "minOffsetsPerTrigger", _positive, 0),
        max_delay=_get(options, "maxTriggerDelay", duration, MAX_DELAY),
        wait=_get(options, "brokerWait", duration, WAIT),
        chunk_bytes=_get(options, "chunkBytes", _positive, CHUNK_BYTES),
        damaged=_get(options, "onDamaged", _damaged, Damaged.FAIL),
        security=parse_security(options),
    )


_KNOWN: Final = {
    name.lower(): name
    for name in (
        "servers", "topic", "topicPattern", "startingOffsets", "endingOffsets", "startingTimestamp",
        "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "group", "ordered", "tags",
        "failOnDataLoss", "columns", "minPartitions", "maxOffsetsPerTrigger", "maxBytesPerTrigger",
        "minOffsetsPerTrigger", "maxTriggerDelay", "brokerWait", "chunkBytes", "onDamaged", *SECURITY_OPTIONS,
    )
}  # fmt: skip
_STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "group",
)  # fmt: skip
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def _refuse_unknown(options: Mapping[str, str]) -> None:
    for name in options:
        if name not in _KNOWN and name not in SPARKS_OWN:
            raise InvalidOption(f"{name}: there is no such option; {_instead(name)}")


def _instead(name: str) -> str:
    """People come with the names of Kafka's source; what is like none of them may be misspelt."""
    told = in_our_words(name)
    if told is not None:
        return told
    near = get_close_matches(name, _KNOWN, 1)
    return f"did you mean {_KNOWN[near[0]]}?" if near else "docs/reference/spark.md lists all of them"


def _refuse_for_batch(options: Mapping[str, str], streaming: bool | None) -> None:
    if streaming is None:
        return
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        if name.lower() in options:
            where = "batch" if streaming else "streaming"
            raise InvalidOption(f"{name}: only for {where} queries; leave it out")


def _check_combinations(options: Mapping[str, str], group: str | None, ordered: bool) -> None:
    if ordered and "minpartitions" in options:
        raise InvalidOption(
            "minPartitions: would split a queue's range over tasks, which ordered=true forbids; set ordered=false"
        )
    least = _get(options, "minOffsetsPerTrigger", _positive, 0)
    most = _get(options, "maxOffsetsPerTrigger", _positive, None)
    if most is not None and least > most:
        raise InvalidOption(f"minOffsetsPerTrigger: {least} is above maxOffsetsPerTrigger, {most}")
    if group is None and options.get("startingoffsets", "").strip().lower() == "committed":
        raise InvalidOption("startingOffsets: committed is the place of a group; set the option group")


def _servers(options: Mapping[str, str]) -> str:
    if "servers" not in options:
        raise InvalidOption("servers: missing; give the broker's or name servers' addresses, such as localhost:9876")
    _get(options, "servers", parse_addresses, ())
    return options["servers"]


def _topics(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    if ("topic" in options) == ("topicpattern" in options):
        raise InvalidOption("topic: give either topic (one, or several joined by commas) or topicPattern")
    if "topicpattern" in options:
        return (), _get(options, "topicPattern", _pattern, None)
    names = _get(options, "topic", _names, ())
    for name in names:
        _get({"topic": name}, "topic", check_topic, "")
    if not names:
        raise InvalidOption("topic: no topic is named")
    return tuple(dict.fromkeys(names)), None


def _start(options: Mapping[str, str], streaming: bool | None, member: bool) -> Place:
    default = Kind.COMMITTED if member else Kind.LATEST if streaming else Kind.EARLIEST
    place = _place(options, "starting", Place(default))
    if streaming is False and place.kind is Kind.LATEST:
        raise InvalidOption("startingOffsets: a batch query from latest reads nothing; use earliest or an offset")
    return place


def _end(options: Mapping[str, str]) -> Place:
    place = _place(options, "ending", Place(Kind.LATEST))
    if place.kind in (Kind.EARLIEST, Kind.COMMITTED):
        raise InvalidOption(f"endingOffsets: {place.kind.value} is no end; use latest, JSON or a time")
    return place


def _place(options: Mapping[str, str], which: str, default: Place) -> Place:
    by_name = {
        f"{which}Offsets": lambda text: parse_place(f"{which}Offsets", text),
        f"{which}Timestamp": lambda text: Place(Kind.TIME, _whole(text)),
        f"{which}OffsetsByTimestamp": lambda text: parse_times(f"{which}OffsetsByTimestamp", text),
    }
    given = [name for name in by_name if name.lower() in options]
    if len(given) > 1:
        raise InvalidOption(f"{given[1]}: contradicts {given[0]}; give one of them")
    return _get(options, given[0], by_name[given[0]], default) if given else default


def _get(options: Mapping[str, str], name: str, parse: Callable[[str], T], default: D) -> T | D:
    """One option, read by `parse`; whatever is wrong with it, the error begins with its name."""
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        return parse(text)
    except (LaneError, ValueError) as error:
        message = str(error)
        raise InvalidOption(message if message.startswith(name) else f"{name}: {message}") from None


def _flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise InvalidOption(f"{text!r} is neither true nor false")
    return text.strip().lower() == "true"


def _damaged(text: str) -> Damaged:
    if text.strip().lower() not in list(Damaged):
        raise InvalidOption(f"{text!r} is none of {', '.join(Damaged)}")
    return Damaged(text.strip().lower())


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise InvalidOption(f"{text!r} is no whole number from 0 up")
    return int(text)


def _positive(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise InvalidOption(f"{number} is too small: at least 1")
    return number


def duration(text: str) -> Millis:
    """`500ms`, `30s`, `15m` or plain milliseconds."""
    found = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|h)?\s*", text)
    if found is None:
        raise InvalidOption(f"{text!r} is no duration: write 500ms, 30s, 15m or 1h")
    return Millis(int(found[1]) * {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}[found[2] or "ms"])


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOption(f"{text!r} is no regular expression: {error}") from None
    return text
