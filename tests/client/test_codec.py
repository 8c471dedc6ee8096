"""What a codec encodes and decodes, and which types it refuses before the first message comes."""

import dataclasses
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from lanemq import CodecError, InvalidOption
from lanemq.client.codec import BytesCodec, JsonCodec, TextCodec, codec_named, decoder_for


@dataclasses.dataclass
class Paid:
    order: int
    when: datetime | None = None


class Shipped(msgspec.Struct):
    order: int


class Packed(TypedDict):
    order: int


class Returned(pydantic.BaseModel):
    order: int = pydantic.Field(alias="orderId", gt=0)
    when: datetime


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    when: datetime


@pydantic.dataclasses.dataclass
class Refunded:
    cents: int = pydantic.Field(gt=0)


@dataclasses.dataclass
class HoldsRefunded:
    refunded: Refunded


class Unfinished(pydantic.BaseModel):
    later: "NotDefined"  # type: ignore[name-defined]  # noqa: F821


class Plain:
    """JSON does not say how to make one."""


@dataclasses.dataclass
class Holds:
    plain: Plain


@dataclasses.dataclass
class HoldsModel:
    returned: Returned


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
VALUES = [
    (Paid(5, NOON), Paid),
    (Shipped(5), Shipped),
    (Packed(order=5), Packed),
    (Returned(orderId=5, when=NOON), Returned),
    (Strict(when=NOON), Strict),
    (Refunded(cents=5), Refunded),
    ([Returned(orderId=5, when=NOON)], list[Returned]),
    (HoldsModel(Returned(orderId=5, when=NOON)), HoldsModel),
    ({"order": 5}, dict),
    ({"order": 5}, Any),
    ({"order": 5}, object),
    (b"\xff", bytes),
    ("text", str),
    ([1, 2], Sequence[int]),
]


@pytest.mark.parametrize(("value", "wanted"), VALUES, ids=lambda each: str(each)[:30])
def test_a_value_comes_back_as_its_type(value: Any, wanted: Any) -> None:
    codec = JsonCodec()
    decoded = decoder_for(codec, wanted)(codec.encode(value))
    assert decoded == value
    assert type(decoded) is type(value)
    assert codec.decode(codec.encode(value), wanted) == value


def test_models_are_sent_by_alias_also_inside_other_values() -> None:
    sent = JsonCodec().encode({"returned": Returned(orderId=5, when=NOON)})
    assert msgspec.json.decode(sent) == {"returned": {"orderId": 5, "when": "2026-01-31T12:00:00Z"}}


@pytest.mark.parametrize(
    ("wanted", "body"), [(Refunded, b'{"cents": -1}'), (Refunded, b"{}"), (HoldsRefunded, b'{"refunded": {}}')]
)
def test_a_dataclass_of_pydantic_is_validated(wanted: Any, body: bytes) -> None:
    with pytest.raises(CodecError, match="cents"):
        decoder_for(JsonCodec(), wanted)(body)


def test_a_model_with_an_undefined_name_is_refused_by_name() -> None:
    with pytest.raises(InvalidOption, match=r"Unfinished .*NotDefined"):
        decoder_for(JsonCodec(), Unfinished)


def test_a_union_of_models_is_decided_by_pydantic() -> None:
    decode = decoder_for(JsonCodec(), Returned | Strict)
    assert isinstance(decode(b'{"when": "2026-01-31T12:00:00Z"}'), Strict)
    assert isinstance(decode(b'{"orderId": 1, "when": "2026-01-31T12:00:00Z"}'), Returned)


@pytest.mark.parametrize("wanted", [Plain, list[Plain], Holds, Plain | None, Returned | Shipped, Paid | Shipped])
def test_a_type_that_cannot_be_decoded_is_refused_by_name(wanted: Any) -> None:
    with pytest.raises(InvalidOption, match=r"Plain|Shipped") as found:
        decoder_for(JsonCodec(), wanted)
    assert "use a dataclass" in str(found.value)


@pytest.mark.parametrize("wanted", [Paid, Shipped, Packed, Returned])
def test_a_body_of_another_shape_is_a_codec_error_that_names_type_and_field(wanted: Any) -> None:
    field = "orderId" if wanted is Returned else "order"
    with pytest.raises(CodecError, match=rf"the body does not fit {wanted.__name__}: .*{field}"):
        decoder_for(JsonCodec(), wanted)(b'{"%s": "x", "when": "2026-01-31T12:00:00Z"}' % field.encode())
    with pytest.raises(CodecError, match="the body is not JSON: "):
        decoder_for(JsonCodec(), wanted)(b"{")


def test_a_value_without_json_form_is_named_also_inside_another() -> None:
    with pytest.raises(CodecError, match="cannot encode Plain"):
        JsonCodec().encode({"a": [Plain()]})


def test_text_is_sent_without_quotation_marks() -> None:
    codec = codec_named("text")
    assert isinstance(codec, TextCodec)
    assert codec.encode("ä") == "ä".encode()
    assert codec.encode(b"raw") == b"raw"
    assert decoder_for(codec, str)("ä".encode()) == "ä"
    assert decoder_for(codec, bytes)(b"\xff") == b"\xff"
    with pytest.raises(CodecError, match="UTF-8"):
        codec.decode(b"\xff", str)
    with pytest.raises(CodecError, match="not dict"):
        codec.encode({})


@pytest.mark.parametrize("codec", [TextCodec(), BytesCodec()])
def test_a_codec_of_bytes_or_text_refuses_other_types(codec: Any) -> None:
    with pytest.raises(InvalidOption, match=r"Paid is not what this codec decodes into.*bytes"):
        decoder_for(codec, Paid)


def test_a_codec_of_the_users_own_gets_the_type() -> None:
    class Own:
        def encode(self, value: object) -> bytes:
            return b"own"

        def decode(self, body: bytes, wanted: Any) -> Any:
            return wanted, body

    assert decoder_for(Own(), Plain)(b"x") == (Plain, b"x")


def test_pydantic_is_not_imported_for_programs_without_it() -> None:
    code = (
        "import sys\nfrom lanemq.client.codec import JsonCodec\n"
        "codec = JsonCodec()\nassert codec.decode(codec.encode({'a': 1}), dict) == {'a': 1}\n"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Unlike(pydantic.BaseModel):
    total: int = pydantic.Field(0, validation_alias="sum", serialization_alias="amount")


class OnlyRead(pydantic.BaseModel):
    total: int = pydantic.Field(validation_alias="sum")


class OnlyWritten(pydantic.BaseModel):
    total: int = pydantic.Field(serialization_alias="sum")


class Generated(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        alias_generator=pydantic.AliasGenerator(serialization_alias=lambda name: name.upper())
    )
    total: int


class HoldsUnlike(pydantic.BaseModel):
    all: list[Unlike | None] = []


@pytest.mark.parametrize(
    "value", [Unlike(sum=5), OnlyRead(sum=5), OnlyWritten(total=5), Generated(total=5), HoldsUnlike()]
)
def test_a_model_that_its_handler_could_not_read_is_refused_with_type_and_field(value: Any) -> None:
    """Without the check, `total` of the first would arrive as 0, and a handler of the second would park every key."""
    with pytest.raises(CodecError, match=r"field total of \w+ is written as '\w+' and read by another name"):
        JsonCodec().encode(value)
    with pytest.raises(CodecError, match="field total of"):
        JsonCodec().encode({"inside": [value]})


class Doubled(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    n: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return self.n * 2


def test_a_model_that_forbids_what_it_computes_is_refused() -> None:
    """It writes `double`, and would refuse to read it: every key would be parked."""
    with pytest.raises(CodecError, match="double of Doubled is computed and written"):
        JsonCodec().encode(Doubled(n=1))


def test_a_model_with_another_alias_for_reading_may_be_the_annotation_of_a_handler() -> None:
    """Other programs may write what it reads."""
    assert decoder_for(JsonCodec(), Unlike)(b'{"sum": 5}').total == 5


class EitherName(pydantic.BaseModel):
    total: int = pydantic.Field(
        validation_alias=pydantic.AliasChoices("sum", pydantic.AliasPath("amount")), serialization_alias="amount"
    )


class AlsoByName(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    total: int = pydantic.Field(validation_alias="sum")


class NotWritten(pydantic.BaseModel):
    order: int
    total: int = pydantic.Field(0, validation_alias="sum", exclude=True)


class RenamesItself(pydantic.BaseModel):
    total: int = pydantic.Field(serialization_alias="sum")

    @pydantic.model_validator(mode="before")
    @classmethod
    def renamed(cls, found: Any) -> Any:
        return {"total": found.get("sum", found.get("total"))}


@pytest.mark.parametrize("value", [EitherName(sum=5), AlsoByName(total=5), NotWritten(order=5), RenamesItself(total=5)])
def test_a_model_with_two_names_for_a_field_is_sent_if_it_can_be_read(value: Any) -> None:
    codec = JsonCodec()
    assert decoder_for(codec, type(value))(codec.encode(value)) == value


@pydantic.dataclasses.dataclass
class Renamed:
    order: int = pydantic.Field(alias="orderId")
    seal: bytes = b"paid"


@dataclasses.dataclass
class HoldsRenamed:
    renamed: list[Renamed]
    seal: bytes = b"held"


class ModelOfRenamed(pydantic.BaseModel):
    renamed: Renamed


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Renamed(orderId=5), Renamed),
        (HoldsRenamed([Renamed(orderId=5)]), HoldsRenamed),
        ([Renamed(orderId=5)], list[Renamed]),
        ({"new": Renamed(orderId=5)}, dict[str, Renamed]),
        (ModelOfRenamed(renamed=Renamed(orderId=5)), ModelOfRenamed),
    ],
)
def test_a_dataclass_of_pydantic_arrives_as_it_was_sent_wherever_it_is(value: Any, wanted: Any) -> None:
    """By its alias, and with bytes as Pydantic reads them. A plain dataclass around it is read by Pydantic too."""
    codec = JsonCodec()
    assert decoder_for(codec, wanted)(codec.encode(value)) == value
    assert b'"orderId":5,"seal":"paid"' in codec.encode(value)


def test_what_stands_beside_a_dataclass_of_pydantic_is_written_too() -> None:
    sent = JsonCodec().encode({"new": Renamed(orderId=5), "old": Shipped(4), "at": NOON, "n": None})
    assert msgspec.json.decode(sent) == {
        "new": {"orderId": 5, "seal": "paid"},
        "old": {"order": 4},
        "at": "2026-01-31T12:00:00Z",
        "n": None,
    }


@pydantic.dataclasses.dataclass
class UnlikeData:
    total: int = pydantic.Field(0, validation_alias="sum", serialization_alias="amount")


@pydantic.dataclasses.dataclass
class OnlyReadData:
    total: int = pydantic.Field(validation_alias="sum")


@pytest.mark.parametrize("value", [UnlikeData(sum=5), OnlyReadData(sum=5)])
def test_a_dataclass_of_pydantic_that_its_handler_could_not_read_is_refused(value: Any) -> None:
    for each in (value, [value]):
        with pytest.raises(CodecError, match=r"field total of \w+ is written as '\w+' and read by another name"):
            JsonCodec().encode(each)


@pydantic.dataclasses.dataclass(config=pydantic.ConfigDict(extra="forbid"))
class ForbidsItself:
    order: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return 2 * self.order


def test_a_dataclass_of_pydantic_that_writes_what_it_forbids_is_refused() -> None:
    with pytest.raises(CodecError, match=r"twice of ForbidsItself is computed and written"):
        JsonCodec().encode(ForbidsItself(5))


def test_a_value_that_contains_itself_is_refused_also_beside_dataclasses_of_pydantic() -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    with pytest.raises(CodecError):
        JsonCodec().encode(endless)


@dataclasses.dataclass
class Reading:
    celsius: float | None
    place: str = "null"


class ReadingStruct(msgspec.Struct):
    celsius: float | None


class ReadingModel(pydantic.BaseModel):
    celsius: float | None


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "around", [float, Reading, ReadingStruct, lambda n: ReadingModel(celsius=n), lambda n: {"a": [None, {"b": (n,)}]}]
)
def test_a_number_that_json_does_not_have_is_refused_and_not_sent_as_null(around: Any, number: float) -> None:
    with pytest.raises(CodecError, match=f"contains {number}, which JSON does not have"):
        JsonCodec().encode(around(number))
    assert JsonCodec().encode(around(1.5))


def test_null_is_sent_as_null() -> None:
    for value in (None, Reading(None), ReadingStruct(None), ReadingModel(celsius=None), {"a": [None, "null"]}):
        assert b"null" in JsonCodec().encode(value)


def test_a_type_of_the_program_may_wait_for_another_decoding_thread_while_pydantic_reads_it() -> None:
    """No lock of ours is held meanwhile, or both threads would wait for ever."""

    class Event(msgspec.Struct):
        number: int

    class Model(pydantic.BaseModel):
        number: int

    ended: list[bool] = []

    class Waiting:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            thread = threading.Thread(target=lambda: JsonCodec().decode(b'{"number": 1}', Event), daemon=True)
            thread.start()
            thread.join(10)
            ended.append(not thread.is_alive())
            return handler.generate_schema(int)

    assert JsonCodec().decode(b'{"number": 1}', Model | Waiting) == Model(number=1)
    assert ended
    assert all(ended)
