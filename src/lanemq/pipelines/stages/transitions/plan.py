"""What tasks are sent and what they send back."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lanemq.pipelines.stages.transitions.decoding import decoder, empty_decoder
from lanemq.pipelines.stages.transitions.event import Step
from lanemq.pipelines.stages.transitions.lane import LaneCodec
from lanemq.pipelines.stages.transitions.limits import StateLimits
from lanemq.pipelines.stages.transitions.operator_requests import NONE, Orders
from lanemq.pipelines.stages.transitions.policies import Policy
from lanemq.pipelines.stages.transitions.redrives import Letter, Redrives
from lanemq.pipelines.stages.transitions.row_shape import RowShape
from lanemq.pipelines.stages.transitions.rules import Number, OnExpire, OnGap, Rules, numbering
from lanemq.pipelines.stages.transitions.shard import Version


@dataclass(frozen=True, slots=True)
class Spec:
    """A stage's options, as the user gave them: picklable, while decoders are not."""

    step: Step
    outputs: StructType
    decode: Any
    state_type: Any
    policy: Policy
    sequence: str | Number | None
    on_gap: OnGap
    first_number: int | None
    limits: StateLimits
    by_queue: bool = True
    """Whether shards are queues."""
    one_queue_a_key: bool = False
    on_expire: OnExpire | None = None

    def rules(self) -> Rules:
        """Checks the options, too."""
        return Rules(
            step=self.step,
            decode=decoder(self.decode),
            shape=RowShape(to_arrow_schema(self.outputs, timezone="UTC")),
            policy=self.policy,
            limits=self.limits,
            codec=LaneCodec(self.state_type),
            number=numbering(self.sequence),
            on_gap=self.on_gap,
            first_number=self.first_number,
            by_queue=self.by_queue,
            one_queue_a_key=self.one_queue_a_key,
            on_expire=self.on_expire,
            decode_empty=empty_decoder(self.decode),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """One unit of work, for every task of it."""

    spec: Spec
    place: Path
    query: str
    number: int
    wall: int
    versions: dict[str, Version]
    """What every shard starts from; a shard that is not named starts empty."""
    orders: Orders = NONE
    redrives: tuple[str, ...] = ()
    """Files of letters that a pass gives to the step again."""
    homes: Mapping[str, str] = field(default_factory=dict)
    """The shards of their lanes, where shards are not queues."""

    def letters(self, shard: str) -> Iterator[Letter]:
        """Those of one shard."""
        redrives = Redrives(self.place)
        for ident in self.redrives:
            yield from (each for each in redrives.letters(ident) if self.shard_of(each) == shard)

    def shard_of(self, letter: Letter) -> str:
        return letter.queue if self.spec.by_queue else self.homes[letter.lane]


class Summary(msgspec.Struct):
    """What a task says about one shard."""

    shard: str
    version: Version
    snapshot: bool
    """Whether a snapshot was written."""
    keys: int
    waiting: int
    parked: int
    retry_at: int | None
    outputs: tuple[str, int]
    """The file of outputs, by name, and its rows; there is no file without rows."""
    dead: tuple[str, int]
    counts: dict[str, int]
    late: list[tuple[str, int, int]] = []
    """Redriven letters among the applied: topic, queue, offset."""


class Refusal(msgspec.Struct):
    """Why a task could not do its work: an error that is the same at every attempt, so Spark need not repeat it."""

    kind: str
    text: str


class Answer(msgspec.Struct):
    """One row of a task."""

    shards: list[Summary]
    refusal: Refusal | None = None


ANSWER = "answer binary"
pack_answer: Callable[[Answer], bytes] = msgspec.msgpack.Encoder().encode
unpack_answer: Callable[[bytes], Answer] = msgspec.msgpack.Decoder(Answer).decode
