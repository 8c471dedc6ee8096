"""The options of `format("lanemq")`: everything for reading, and what reading and writing share.

All options are checked before a query starts. An option that is misspelt, out of range or contradicts another raises
`InvalidOption`, which names it. No option is ignored silently: a query that reads something else than its author
believes looks like data loss later.

Durations are `500ms`, `30s`, `15m`, `1h`, `1d`, or a number of seconds. Spark's own settings read a number without a
unit as milliseconds; these options read it as everything else in LaneMQ does.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, TypeVar

from lanemq.client.consumer.tag_filter import TagFilter, tag_filter
from lanemq.client.security import credentials_of, secret_in, secret_of_environment, security_of, tls_options
from lanemq.model.environment import VERIFY
from lanemq.model.errors import InvalidOption, LaneError
from lanemq.model.names import check_group, check_topic
from lanemq.model.units import Millis, parse_duration, to_millis
from lanemq.net.address import parse_addresses
from lanemq.net.security import OPEN, Security, TlsOptions
from lanemq.spark.foreign_names import equivalent_option
from lanemq.spark.offsets import LimitKind, RangeLimit, parse_offsets, parse_timestamps
from lanemq.wire.signing import Credentials

T = TypeVar("T")
D = TypeVar("D")

DEFAULT_GROUP: Final = "lanemq-spark"
"""The group name in pulls of queries without a group."""

ALL_TAGS: Final = tag_filter("*")
DEFAULT_MAX_DELAY: Final = Millis(900_000)
"""15 minutes, as in Spark's Kafka source."""
DEFAULT_WAIT: Final = Millis(60_000)
CHUNK_BYTES: Final = 768 * 1024
"""Size of an Arrow batch before decoding. It is below a full pull response (`range_reader.PULL_BYTES`), which is
then passed on without copying. Larger: responses are copied together. Much smaller: the cost per batch dominates."""

SPARK_OPTIONS: Final = frozenset({"path", "checkpointlocation", "queryname", "header"})
"""Options that Spark itself passes to every source; they are ignored."""

SECURITY_OPTIONS: Final = (
    "tls", "tls.ca", "tls.cert", "tls.key", "tls.verify",
    "accessKey", "secretKey", "secretKeyFile", "securityToken",
)  # fmt: skip

SECRETS: Final = frozenset({"secretkey", "securitytoken"})
"""Options whose values must not appear in any text."""


class OnDamaged(StrEnum):
    """Values of the option `onDamaged`: what to do with a message whose compressed body cannot be decompressed."""

    FAIL = "fail"
    """The query fails with an error that names the message. It fails again at every attempt and start."""
    NULL = "null"
    """The row's value is null."""
    RAW = "raw"
    """The row's value is the stored bytes, still compressed."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The parsed options of one query."""

    servers: str
    topics: tuple[str, ...]
    topic_pattern: str | None
    start: RangeLimit
    end: RangeLimit
    group: str | None = None
    """Where the query's offsets are stored after each batch, to show its lag; the query is no member of it."""
    ordered: bool = True
    tags: TagFilter = ALL_TAGS
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = ()
    min_partitions: int = 0
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int = 0
    max_delay: Millis = DEFAULT_MAX_DELAY
    wait: Millis = DEFAULT_WAIT
    chunk_bytes: int = CHUNK_BYTES
    on_damaged: OnDamaged = OnDamaged.FAIL
    security: Security = OPEN

    @property
    def pull_group(self) -> str:
        return self.group or DEFAULT_GROUP

    def reads(self, topic: str) -> bool:
        """Whether the options select this topic, whether or not it exists."""
        pattern = self.topic_pattern
        return topic in self.topics if pattern is None else re.fullmatch(pattern, topic) is not None


def parse_read_options(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Parses the options of one query; `InvalidOption` names the first one that is wrong.

    `streaming` is None while Spark has not yet said whether the query is a streaming one.
    """
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(options)
    _refuse_wrong_kind(options, streaming)
    topics, pattern = _topics(options)
    group = _get(options, "group", check_group, None)
    _check_combinations(options, group)
    return ReadOptions(
        servers=_servers(options),
        topics=topics,
        topic_pattern=pattern,
        start=_start(options, streaming),
        end=_end(options),
        group=group,
        ordered=_get(options, "ordered", _flag, True),
        tags=_get(options, "tags", tag_filter, ALL_TAGS),
        fail_on_data_loss=_get(options, "failOnDataLoss", _flag, True),
        columns=_get(options, "columns", _names, ()),
        min_partitions=_get(options, "minPartitions", _positive, 0),
        max_offsets=_get(options, "maxOffsetsPerTrigger", _positive, None),
        max_bytes=_get(options, "maxBytesPerTrigger", _positive, None),
        min_offsets=_get(options, "minOffsetsPerTrigger", _positive, 0),
        max_delay=_get(options, "maxTriggerDelay", _duration, DEFAULT_MAX_DELAY),
        wait=_get(options, "brokerWait", _duration, DEFAULT_WAIT),
        chunk_bytes=_get(options, "chunkBytes", _positive, CHUNK_BYTES),
        on_damaged=_get(options, "onDamaged", _on_damaged, OnDamaged.FAIL),
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
        if name not in _KNOWN and name not in SPARK_OPTIONS:
            raise InvalidOption(f"{name}: there is no such option; {_advice(name)}")


def _advice(name: str) -> str:
    advice = equivalent_option(name)
    if advice is not None:
        return advice
    near = get_close_matches(name, _KNOWN, 1)
    return f"did you mean {_KNOWN[near[0]]}?" if near else "docs/reference/spark.md lists all options"


def _refuse_wrong_kind(options: Mapping[str, str], streaming: bool | None) -> None:
    if streaming is None:
        return
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        if name.lower() in options:
            where = "batch" if streaming else "streaming"
            raise InvalidOption(f"{name}: only for {where} queries; leave it out")


def _check_combinations(options: Mapping[str, str], group: str | None) -> None:
    least = _get(options, "minOffsetsPerTrigger", _positive, 0)
    most = _get(options, "maxOffsetsPerTrigger", _positive, None)
    if most is not None and least > most:
        raise InvalidOption(f"minOffsetsPerTrigger: {least} is greater than maxOffsetsPerTrigger={most}")
    if group is None and options.get("startingoffsets", "").strip().lower() == "committed":
        raise InvalidOption("startingOffsets: committed needs a group; set the option group")


def _servers(options: Mapping[str, str]) -> str:
    if "servers" not in options:
        raise InvalidOption(
            "servers: missing; give the address of the broker or of the name servers, such as localhost:9876"
        )
    _get(options, "servers", parse_addresses, ())
    return options["servers"]


def _topics(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    if ("topic" in options) == ("topicpattern" in options):
        raise InvalidOption("topic: give either topic (one name, or several separated by commas) or topicPattern")
    if "topicpattern" in options:
        return (), _get(options, "topicPattern", _pattern, None)
    names = _get(options, "topic", _names, ())
    for name in names:
        _get({"topic": name}, "topic", check_topic, "")
    if not names:
        raise InvalidOption("topic: the value names no topic")
    return tuple(dict.fromkeys(names)), None


def _start(options: Mapping[str, str], streaming: bool | None) -> RangeLimit:
    limit = _range_limit(options, "starting", RangeLimit(LimitKind.LATEST if streaming else LimitKind.EARLIEST))
    if streaming is False and limit.kind is LimitKind.LATEST:
        raise InvalidOption("startingOffsets: a batch query from latest reads nothing; use earliest or an offset")
    return limit


def _end(options: Mapping[str, str]) -> RangeLimit:
    limit = _range_limit(options, "ending", RangeLimit(LimitKind.LATEST))
    if limit.kind in (LimitKind.EARLIEST, LimitKind.COMMITTED):
        raise InvalidOption(f"endingOffsets: {limit.kind.value} cannot be an end; use latest, JSON or a time")
    return limit


def _range_limit(options: Mapping[str, str], which: str, default: RangeLimit) -> RangeLimit:
    by_name = {
        f"{which}Offsets": lambda text: parse_offsets(f"{which}Offsets", text),
        f"{which}Timestamp": lambda text: RangeLimit(LimitKind.TIME, _whole(text)),
        f"{which}OffsetsByTimestamp": lambda text: parse_timestamps(f"{which}OffsetsByTimestamp", text),
    }
    given = [name for name in by_name if name.lower() in options]
    if len(given) > 1:
        raise InvalidOption(f"{given[1]}: contradicts {given[0]}; give one of them")
    return _get(options, given[0], by_name[given[0]], default) if given else default


def _get(options: Mapping[str, str], name: str, parse: Callable[[str], T], default: D) -> T | D:
    """One option, parsed by `parse`; every error begins with the option's name."""
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


def _on_damaged(text: str) -> OnDamaged:
    if text.strip().lower() not in list(OnDamaged):
        raise InvalidOption(f"{text!r} is not one of {', '.join(OnDamaged)}")
    return OnDamaged(text.strip().lower())


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise InvalidOption(f"{text!r} is not an integer >= 0")
    return int(text)


def _positive(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise InvalidOption(f"{number} is too small: it must be at least 1")
    return number


def _duration(text: str) -> Millis:
    return to_millis(parse_duration(text))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOption(f"{text!r} is not a regular expression: {error}") from None
    return text


def parse_security(options: Mapping[str, str]) -> Security:
    """TLS and credentials, from options with lower-case names.

    What the options leave out comes from the environment of the process that plans the query. The result is sent to the
    tasks, so executors need no environment of their own, but files must have the same path on all machines.
    """
    return security_of(_tls(options), _credentials(options))


def _tls(options: Mapping[str, str]) -> TlsOptions | None:
    switch = options.get("tls", "true").strip().lower()
    if switch not in ("true", "false"):
        raise InvalidOption(f"tls: {switch!r} is neither true nor false")
    given = [name for name in SECURITY_OPTIONS if name.startswith("tls") and name in options]
    if not given:
        return None
    if switch == "false":
        if len(given) > 1:
            raise InvalidOption(f"{given[1]}: contradicts tls=false; leave one of them out")
        return None
    ca, cert, key = (options.get(f"tls.{name}") for name in ("ca", "cert", "key"))
    try:
        return tls_options(ca, cert, key, options.get("tls.verify", VERIFY[0]).strip().lower(), "tls.verify")
    except InvalidOption as error:
        name = next((name for name in ("tls.key", "tls.cert", "tls.ca") if name.replace(".", " ") in str(error)), "tls")
        raise InvalidOption(str(error) if str(error).startswith("tls.") else f"{name}: {error}") from None


def _credentials(options: Mapping[str, str]) -> Credentials | None:
    secret = options.get("secretkey")
    if "secretkeyfile" in options:
        if secret is not None:
            raise InvalidOption("secretKeyFile: contradicts secretKey; give one of them")
        secret = secret_in(options["secretkeyfile"], "secretKeyFile:")
    elif secret is None and "accesskey" in options:
        secret = secret_of_environment(os.environ)
    return credentials_of(options.get("accesskey"), secret, options.get("securitytoken"), ("accessKey", "secretKey"))
