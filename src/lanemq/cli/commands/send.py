"""`lanemq send`: sends messages from the command line or a file, in the given order."""

import contextlib
import json
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import BinaryIO, NamedTuple

import click

from lanemq.cli.options import CliError, as_failure, asks_server
from lanemq.cli.output import Grid, plural, show, without_log
from lanemq.cli.security import ConnectingCommand
from lanemq.client.producer.producer import Producer
from lanemq.client.receipt import Receipt
from lanemq.client.routing import BlockingRoutes
from lanemq.client.security import security_of
from lanemq.model.errors import LaneError, TransportError, UsageError
from lanemq.model.names import check_topic
from lanemq.net.address import parse_addresses

MAX_IN_FLIGHT = 1000
"""Messages sent before their receipts arrive: enough to fill batches, few enough to stop soon after a failure."""

MAX_ROWS = 20
"""Receipts in the table; `--json` prints all."""

NUMBER = b"{n}"


class Line(NamedTuple):
    """One message to send; `number` is its line or its position."""

    number: int
    body: bytes
    key: str | None


@click.command(cls=ConnectingCommand)
@click.argument("topic")
@click.argument("value", required=False)
@click.option("--key", "-k", help="Ordering key: messages with the same key stay in order.")
@click.option("--tag", "-t", help="Tag, by which consumers can filter.")
@click.option(
    "--property", "-p", "pairs", multiple=True, metavar="NAME=VALUE", help="Message property; may be repeated."
)
@click.option("--file", "-f", "source", type=click.File("rb"), help="Send each line of this file; - reads stdin.")
@click.option("--key-separator", metavar="TEXT", help="With --file: text between key and value in each line.")
@click.option(
    "--count", type=click.IntRange(1), metavar="N", help="Send VALUE this many times; {n} is replaced by 1, 2, 3 …"
)
@asks_server
def send(
    topic: str,
    value: str | None,
    key: str | None,
    tag: str | None,
    pairs: tuple[str, ...],
    source: BinaryIO | None,
    key_separator: str | None,
    count: int | None,
    server: str,
    as_json: bool,
) -> None:
    """Send VALUE, or each line of a file, to TOPIC.

    VALUE is sent as it is, byte for byte; a warning says if it looks like JSON and is not.

    Prints where each message is stored. The command stops at the first failure. The error says how many messages are
    stored and where to resume. With --json, stdout then has an object with "error", "stored", "go_on_from",
    "stored_after" and "receipts".
    """
    if (value is None) == (source is None):
        raise click.UsageError("give either VALUE or --file (--file - reads stdin)")
    if key_separator is not None and (source is None or key is not None or not key_separator):
        raise click.UsageError("--key-separator needs --file, excludes --key, and must not be empty")
    if count is not None and source is not None:
        raise click.UsageError("--count repeats VALUE and cannot be used with --file")
    properties = dict(map(_pair, pairs))
    lines = _file_lines(source, key, key_separator) if source else _repeated(value or "", key, count)
    noun = "line" if source else "message"
    if value is not None:
        _warn_of_broken_json(value)
    try:
        with without_log("lanemq.client.producer.engine"), Producer(server, codec="bytes") as producer:
            receipts = Sending(producer, topic, noun).send(_once_answered(server, topic, lines), tag, properties)
    except Stopped as stopped:
        if not source and not count:
            raise as_failure(stopped.error) from stopped
        if as_json:
            show(as_json, stopped.document)
        raise stopped.failure() from stopped
    _show(receipts, as_json)


class BadLine(UsageError):
    """A line of the file that is not a message."""

    def __init__(self, number: int, problem: str) -> None:
        self.number = number
        super().__init__(problem)


class Stopped(LaneError):
    """Sending stopped early. It reports what is stored, so that a second call repeats and skips nothing."""

    def __init__(self, noun: str, number: int, error: LaneError, stored: dict[int, Receipt]) -> None:
        super().__init__(number)
        self.error = error
        self._noun = noun
        self._number = number
        self._stored = stored
        self._after = [each for each in stored if each > number]

    def failure(self) -> CliError:
        """The error in one line: cause, what is stored, where to resume."""
        here = f"{self._noun} {self._number}"
        plain = as_failure(self.error, f"{here}: ")
        stored = f"{plural(len(self._stored), self._noun)} stored"
        perhaps = f", perhaps also {here}" if isinstance(self.error, TransportError) else ""
        behind = f"{plural(len(self._after), self._noun)} stored after it (--json lists them)"
        skip = f", but skip {behind}" if self._after else ""
        return type(plain)(f"{plain.message.rstrip('.')}; {stored}{perhaps}: resume from {here}{skip}")

    def document(self) -> dict[str, object]:
        return {
            "error": as_failure(self.error).message,
            "stored": len(self._stored),
            "go_on_from": self._number,
            "stored_after": self._after,
            "receipts": [{"number": number, **_document(each)} for number, each in self._stored.items()],
        }


class Sending:
    """Messages go out in order without waiting for each other; receipts come back in the same order."""

    def __init__(self, producer: Producer, topic: str, noun: str) -> None:
        self._stored: dict[int, Receipt] = {}
        self._noun = noun
        self._submit = partial(producer.submit, topic)
        self._in_flight: deque[tuple[Line, Future[Receipt]]] = deque()

    def send(self, lines: Iterator[Line], tag: str | None, properties: dict[str, str]) -> list[Receipt]:
        number = 1
        try:
            for line in lines:
                number = line.number
                future = self._submit(line.body, key=line.key, tag=tag, properties=properties)
                self._in_flight.append((line, future))
                self._settle(keep=MAX_IN_FLIGHT)
        except Stopped:
            raise
        except LaneError as error:
            self._settle(keep=0)
            raise self._stopped(error.number if isinstance(error, BadLine) else number, error) from error
        self._settle(keep=0)
        return list(self._stored.values())

    def _settle(self, keep: int) -> None:
        """Collects the receipts that have arrived, and waits while more than `keep` messages are in flight."""
        while self._in_flight and (len(self._in_flight) > keep or self._in_flight[0][1].done()):
            line, future = self._in_flight.popleft()
            try:
                self._stored[line.number] = future.result()
            except LaneError as error:
                self._collect_rest()
                raise self._stopped(line.number, error) from error

    def _collect_rest(self) -> None:
        """Waits for the messages in flight: those of other keys may still be stored, and must be reported."""
        for line, future in self._in_flight:
            with contextlib.suppress(LaneError):
                self._stored[line.number] = future.result()
        self._in_flight.clear()

    def _stopped(self, number: int, error: LaneError) -> Stopped:
        return Stopped(self._noun, number, error, self._stored)


def _show(receipts: list[Receipt], as_json: bool) -> None:
    rows = [
        (receipt.queue.queue_id, receipt.offset, receipt.key, receipt.stored.value, receipt.message_id)
        for receipt in receipts[:MAX_ROWS]
    ]
    queues = Counter(receipt.queue for receipt in receipts)
    show(
        as_json,
        lambda: list(map(_document, receipts)),
        Grid(("queue", "offset", "key", "stored", "message id"), rows, "nothing was sent: the file has no lines"),
        *(
            [f"… {plural(len(receipts), 'message')} in {plural(len(queues), 'queue')}"]
            if len(receipts) > MAX_ROWS
            else []
        ),
    )


def _document(receipt: Receipt) -> dict[str, object]:
    return {
        "topic": receipt.topic,
        "broker": receipt.queue.broker,
        "queue": receipt.queue.queue_id,
        "offset": receipt.offset,
        "key": receipt.key,
        "message_id": receipt.message_id,
        "stored": receipt.stored.value,
        "repeat": receipt.repeat,
    }


def _once_answered(server: str, topic: str, lines: Iterator[Line]) -> Iterator[Line]:
    """The lines, if a name server answers. A producer would wait for one, but a person should learn of it at once."""
    for at, line in enumerate(lines):
        if not at:
            routes = BlockingRoutes(parse_addresses(server), security=security_of(), layouts=False)
            try:
                routes.get(check_topic(topic), provisional=True)
            finally:
                routes.close()
        yield line


def _repeated(value: str, key: str | None, count: int | None) -> Iterator[Line]:
    body = value.encode("utf-8", "surrogateescape")
    for number in range(1, (count or 1) + 1):
        yield Line(number, body if count is None else body.replace(NUMBER, str(number).encode()), key)


def _file_lines(source: BinaryIO, key: str | None, separator: str | None) -> Iterator[Line]:
    """The lines of the file, without line ends; empty lines are skipped."""
    for number, raw in enumerate(source, 1):
        body = raw.rstrip(b"\r\n")
        if not body:
            continue
        if separator is None:
            yield Line(number, body, key)
            continue
        head, found, body = body.partition(separator.encode())
        if not found or not head:
            raise BadLine(number, f"the key is missing: every line must be KEY{separator}VALUE")
        yield Line(number, body, head.decode("utf-8", "backslashreplace"))


def _warn_of_broken_json(value: str) -> None:
    """Warns of a value that begins like JSON and does not parse: usually the shell has taken its quotes."""
    if value.lstrip()[:1] not in ("{", "["):
        return
    try:
        json.loads(value)
    except ValueError as error:
        click.echo(f"warning: VALUE looks like JSON and is not: {error}; it is sent as it is", err=True)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--property {text!r} is not NAME=VALUE")
    return name, value
