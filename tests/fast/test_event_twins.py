"""The compiled twins of what a handler reads, and of decoding its event, do what their references do."""

import sys
import zlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct
from tests.core.consuming.scheduler_fixture import Msg, Q
from tests.fast.both import damaged, needs_twins, outcome, references, twins
from tests.fast.test_key_twins import LOGS, MESSAGES, log_of
from tests.wire.encoding import encode_record

from lanemq.client.codec import BytesCodec, decoder_for
from lanemq.client.codec import JsonCodec as Json
from lanemq.client.consumer.turns.counting import TurnTimes
from lanemq.client.consumer.turns.handler import Stop
from lanemq.client.message import Message, MessageSource
from lanemq.core.consuming.busy_workers import Worker
from lanemq.core.consuming.runs import FAILED, NO_LEASE_NEEDED, LaneRun, RunPermit
from lanemq.model.errors import CodecError, Undecodable
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch
from lanemq.wire.record import COMPRESSED

pytestmark = needs_twins

SOURCE = MessageSource(MessageQueue("T", "b", 0), BytesCodec(), Epoch(1))
SOUGHT = ("UNIQ_KEY", "KEYS", "__SHARDINGKEY", "TAGS", "", "a", "ключ", "UNIQ_KEY\x01", "a\x01b", "KEYS\x02", 7)


def read(message: Any) -> Any:
    """What a handler can read of a message."""
    found = message.properties
    single = [
        (found.get(name), found.get(name, "-"), name in found, outcome(found.__getitem__, name)) for name in SOUGHT
    ]
    whole = [dict(found), {**found}, list(found), len(found), sorted(found.items()), list(found.values()), repr(found)]
    return message.body, message.offset, message.queue, message.key, single, whole


def made(kind: Any, log: bytes) -> list[Any]:
    return [kind(SOURCE, log, start) for start in references["record_starts"](log)]


@settings(deadline=None, max_examples=150)
@given(LOGS)
def test_a_handler_reads_the_same_of_both_kinds(log: bytes) -> None:
    assert [read(each) for each in made(Message, log)] == [read(each) for each in made(references["MessageBase"], log)]


@settings(deadline=None, max_examples=150)
@given(damaged(MESSAGES.filter(bool).map(log_of)) | st.binary(max_size=150), st.integers(-5, 150))
def test_nothing_is_read_outside_of_the_buffer(log: bytes, start: int) -> None:
    """Damaged records reach no consumer; the twin must only return or raise."""
    message = outcome(twins["MessageBase"], SOURCE, log, start)
    if not isinstance(message, tuple):
        outcome(read, message)


def test_a_compressed_body_is_expanded_by_both_kinds() -> None:
    log = encode_record(
        topic="T", body=zlib.compress(b"long" * 50), properties_text="", queue_id=0, queue_offset=0, position=0,
        sys_flag=COMPRESSED,
    )  # fmt: skip
    assert [made(kind, log)[0].body for kind in (Message, references["MessageBase"])] == [b"long" * 50] * 2


def test_properties_of_both_kinds_are_mappings_that_compare_by_content() -> None:
    log = log_of([("T", b"", "region\x01eu\x02UNIQ_KEY\x01a\x02")])
    for found in (made(Message, log)[0].properties, references["MessageProperties"](made(Message, log)[0].record)):
        assert isinstance(found, Mapping)
        assert found == {"region": "eu", "UNIQ_KEY": "a"}
        assert found != {"region": "eu"}
        assert (found == 7) is False
        with pytest.raises(TypeError):
            hash(found)


@pytest.mark.parametrize("message_at", [-1, 0, 1])
@pytest.mark.parametrize("body", [b'{"a":1}', b"no JSON", b""])
def test_events_are_decoded_and_passed_alike(message_at: int, body: bytes) -> None:
    message = made(Message, log_of([("T", body, "__SHARDINGKEY\x01k\x02")]))[0]

    def called(kind: Any, decode: Any) -> Any:
        call = kind(
            lambda *given: given, decode, message_at, (CodecError,), lambda message, error: Undecodable(str(error))
        )
        return outcome(call, message)

    for decode in (decoder_for(Json(), dict[str, int]), decoder_for(Json(), bytes)):
        assert called(twins["event_call"], decode) == called(references["event_call"], decode)


def pull_of(*bodies: bytes) -> bytes:
    return log_of([("T", body, "__SHARDINGKEY\x01k\x02") for body in bodies])


def run_all(chosen: dict[str, Any], pulls: list[bytes], wanted: Any, message_at: int, handler: Any) -> list[Any]:
    """Runs the handler for all messages of the pulls; returns what stopped it: the errors with their causes."""
    messages = [each for pull in pulls for each in chosen["make_messages"](Message, SOURCE, pull, True)]
    stops: list[Any] = []

    def stop_after(error: BaseException, batch: Any) -> None:
        causes = [error]
        while causes[-1].__cause__ is not None:
            causes.append(causes[-1].__cause__)
        stops.append(([(type(each), str(each)) for each in causes], [each.body for each in batch]))

    worker, decode = Worker(), decoder_for(Json(), wanted)
    call = chosen["event_call"](
        handler, decode, message_at, (CodecError,), lambda message, error: Undecodable(str(error))
    )
    worker.waiting.append(LaneRun(Q, "k", tuple(messages), 1, 1, RunPermit(NO_LEASE_NEEDED), 9))
    plain = chosen["plain_handler"](call, False, stop_after, lambda result: None)
    chosen["run_waiting"](worker, plain, 1, lambda: 0, Stop(FAILED), TurnTimes())
    return stops


@pytest.mark.parametrize("message_at", [-1, 0, 1])
def test_workers_pass_events_and_report_what_cannot_be_decoded_alike(message_at: int) -> None:
    def outcomes(chosen: dict[str, Any]) -> Any:
        seen: list[Any] = []

        def handler(*given: Any) -> None:
            seen.append([each.body if isinstance(each, Message) else each for each in given])
            if {"a": 3} in given:
                raise KeyError("of the handler")

        pull = pull_of(b'{"a":1}', b"no JSON", b"", b'{"a":"text"}', b'{"a":3}', b'{"a":4}')
        return run_all(chosen, [pull], dict[str, int], message_at, handler), seen

    assert outcomes(twins) == outcomes(references)
    stops, seen = outcomes(twins)
    assert (len(stops), len(seen)) == (4, 3)


def test_an_event_that_refers_to_its_bytes_keeps_them_and_not_the_pull() -> None:
    """The twin decodes a body where it lies in the pull, unless the event continues using it."""
    kept: list[Raw] = []
    bodies = [b'{"n":%d}' % number for number in range(5)]
    pull = pull_of(*bodies)
    before = sys.getrefcount(pull)
    run_all(twins, [pull], Raw, -1, kept.append)
    assert [bytes(each) for each in kept] == bodies
    assert sys.getrefcount(pull) == before


def test_what_an_event_refers_to_stays_in_memory_even_if_the_event_is_refused() -> None:
    kept: list[Raw] = []

    class Refusing(Struct):
        n: Raw

        def __post_init__(self) -> None:
            kept.append(self.n)
            raise ValueError("refused")

    pulls = [pull_of(b'{"n":%d}' % number) for number in range(1000, 1003)]
    before = [sys.getrefcount(pull) for pull in pulls]
    assert len(run_all(twins, pulls, Refusing, -1, pytest.fail)) == len(pulls)
    assert [bytes(each) for each in kept] == [b"1000", b"1001", b"1002"]
    assert [sys.getrefcount(pull) for pull in pulls] == [before[0] + 1, *before[1:]], "the first one was lent"


def test_an_error_of_the_decoder_keeps_its_cause() -> None:
    def fails(body: bytes) -> object:
        raise ValueError(body)

    for kind in (twins["checked_decoder"], references["checked_decoder"]):
        with pytest.raises(CodecError, match="explained") as caught:
            kind(fails, (ValueError,), lambda error: CodecError(f"explained {error}"))(b"x")
        assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(ValueError, match="x"):
            kind(fails, (KeyError,), CodecError)(b"x")


@given(LOGS, st.booleans())
def test_offsets_are_added_alike(log: bytes, plain: bool) -> None:
    messages = [Msg(each.queue_offset, None) for each in made(Message, log)] if plain else made(Message, log)
    ours, theirs = twins["UnfinishedOffsets"](), references["UnfinishedOffsets"]()
    for each in (ours, theirs):
        each.add(messages)
        each.finish(messages[1:])
    assert (ours.first, ours.bytes, ours.offsets()) == (theirs.first, theirs.bytes, theirs.offsets())


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=8))
def test_runs_are_grouped_by_permit_alike(chosen: list[tuple[int, bool]]) -> None:
    permits = [RunPermit(NO_LEASE_NEEDED) for _ in range(3)]
    runs: list[LaneRun[Msg]] = [LaneRun(Q, "k", (Msg(0, "k"),), 1, 1, permits[which], 0) for which, _ in chosen]
    for run, (_, running) in zip(runs, chosen, strict=True):
        run.running = running
    assert twins["by_permit"](runs) == references["by_permit"](runs)
