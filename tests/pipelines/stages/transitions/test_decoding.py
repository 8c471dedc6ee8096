"""What `decode=` accepts, and empty and missing bodies."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from pyspark.cloudpickle import cloudpickle
from tests.pipelines.stages.transitions.pipeline_fixture import Pipeline, Sent

from lanemq.model.errors import CodecError, InvalidOption
from lanemq.pipelines import Event, Park, Transitions
from lanemq.pipelines.stages.transitions.messages import decoder, empty_decoder


class Payment(msgspec.Struct):
    n: int


class Parcel(BaseModel):
    n: int


class Opaque:
    """JSON does not say how to make one."""


def last_value(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    """A deletion ends the key."""
    if event.value is None:
        return None, [{"key": event.key, "n": -1}]
    return 1, [{"key": event.key, "n": event.value["n"] if isinstance(event.value, dict) else event.value.n}]


@pytest.mark.parametrize("decode", ["json", Payment])
def test_an_empty_body_is_a_tombstone_for_the_step(tmp_path: Path, decode: Any) -> None:
    """Debezium sends one after every deletion; as poison it would hold its key."""
    running = Pipeline(tmp_path, step=last_value, decode=decode)
    counts = running.process(Sent(0, 0, "k", {"n": 1}), Sent(0, 1, "k", b""), Sent(0, 2, "k", {"n": 2}))
    assert (counts.get("poison", 0), counts["lanes_held"]) == (0, 0)
    assert running.outputs("k") == [1, -1, 2]


def test_an_empty_body_that_waited_is_a_tombstone_too(tmp_path: Path) -> None:
    running = Pipeline(tmp_path, step=last_value, sequence=lambda event: 3 if event.value is None else event.value["n"])
    running.restart(on_gap="hold")
    running.process(Sent(0, 0, "k", {"n": 2}), Sent(0, 1, "k", b""), Sent(0, 2, "k", {"n": 1}))
    assert running.outputs("k") == [1, 2, -1]


def test_an_empty_body_has_no_number_of_its_own(tmp_path: Path) -> None:
    running = Pipeline(tmp_path, step=last_value, sequence="n", on_failure=Park())
    assert running.process(Sent(0, 0, "k", b""))["parked"] == 1


@pytest.mark.parametrize(("decode", "value"), [("text", ""), ("bytes", b""), (len, 0)])
def test_other_decoders_are_given_the_empty_body(decode: Any, value: object) -> None:
    assert empty_decoder(decode)(b"") == value


@pytest.mark.parametrize("decode", ["json", "text", "bytes", Payment, lambda body: "anything"])
def test_a_message_without_any_body_is_poison(decode: Any) -> None:
    """The source could not decompress it, or `prepare` removed it; it must not count as a tombstone."""
    with pytest.raises(ValueError, match="no body"):
        empty_decoder(decode)(None)


def test_a_pydantic_model_decodes_as_in_a_handler() -> None:
    assert decoder(Parcel)(b'{"n": 1}') == Parcel(n=1)
    assert decoder(list[Parcel])(b'[{"n": 1}]') == [Parcel(n=1)]
    assert decoder(Parcel | None)(b"null") is None
    with pytest.raises(CodecError, match="does not fit Parcel: n: Input should be a valid integer"):
        decoder(Parcel)(b'{"n": "x"}')


def test_a_pydantic_model_of_the_pipelines_file_decodes_in_an_executor() -> None:
    """Executors cannot import the file, so its classes are pickled by value."""

    class Local(Parcel):
        note: str = ""

    received = cloudpickle.loads(cloudpickle.dumps(Local))
    assert decoder(received)(b'{"n": 1}').note == ""


def test_a_step_gets_pydantic_models(tmp_path: Path) -> None:
    running = Pipeline(tmp_path, step=last_value, decode=Parcel)
    assert running.process(Sent(0, 0, "k", {"n": 1}), Sent(0, 1, "k", b"")).get("poison", 0) == 0
    assert running.outputs("k") == [1, -1]


def test_bytes_are_not_decoded() -> None:
    assert (decoder(bytes)(b"x"), empty_decoder(bytes)(b"")) == (b"x", b"")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"decode": Opaque}, "decode: Opaque cannot be decoded from JSON"),
        ({"state_type": Opaque}, "state_type=Opaque: its objects cannot be written"),
        ({"state_type": Parcel}, "state_type=Parcel: .* model_dump"),
    ],
)
def test_a_type_that_every_message_would_fail_with_is_refused_when_it_is_declared(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidOption, match=says):
        Transitions(step=last_value, outputs="key string, n bigint", **options)
