"""What a program passes as keyword arguments: refused by name when wrong, and a folder is enough for a history."""

import gc
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from lanemq.client.consumer.app import App
from lanemq.client.consumer.async_consumer import AsyncConsumer
from lanemq.client.consumer.consumer import Consumer
from lanemq.client.consumer.options import ConsumerOptions, ConsumerSettings, consumer_options
from lanemq.client.consumer.push_consumer import PushConsumer
from lanemq.client.producer.async_producer import AsyncProducer
from lanemq.client.producer.options import ProducerOptions, ProducerSettings, producer_options
from lanemq.client.producer.producer import Producer
from lanemq.clock import SystemClock
from lanemq.history import NO_HISTORY
from lanemq.model.errors import InvalidOption
from lanemq.testing.embedded import EmbeddedBroker

NOT_LISTENING = "127.0.0.1:1"

Make = Callable[..., object]
CLIENTS: dict[str, Make] = {
    "App": lambda **more: App(NOT_LISTENING, group="g", **more),
    "Consumer": lambda **more: Consumer(NOT_LISTENING, group="g", topics="orders", **more),
    "AsyncConsumer": lambda **more: AsyncConsumer(NOT_LISTENING, group="g", topics="orders", **more),
    "PushConsumer": lambda **more: PushConsumer(NOT_LISTENING, group="g", **more),
    "Producer": lambda **more: Producer(NOT_LISTENING, **more),
    "AsyncProducer": lambda **more: AsyncProducer(NOT_LISTENING, **more),
}
every_client = pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)


@every_client
def test_a_name_that_is_not_an_option_is_refused_by_name(make: Make) -> None:
    with pytest.raises(InvalidOption, match="lnger: no such option"):
        make(lnger=3)


@every_client
def test_a_history_that_is_not_a_folder_is_refused_by_name(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in (5, tmp_path / "file"):
        with pytest.raises(InvalidOption, match="history="):
            make(history=wrong)


@every_client
def test_none_as_history_records_nothing(make: Make) -> None:
    make(history=None)


@every_client
def test_an_unknown_codec_is_refused_before_anything_runs(make: Make) -> None:
    for wrong in ("xml", 5):
        with pytest.raises(InvalidOption, match="codec="):
            make(codec=wrong)


def test_a_near_miss_is_answered_with_the_option_that_was_meant() -> None:
    with pytest.raises(InvalidOption, match="did you mean timeout"):
        CLIENTS["Producer"](timout=3)


def test_a_producer_has_no_client_id_to_choose() -> None:
    """The name is also one of the function that reads the settings; it must not pass for that one."""
    with pytest.raises(InvalidOption, match="client_id"):
        CLIENTS["Producer"](client_id="me")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("commit_every", "5"),
        ("stop_timeout", None),
        ("start", "first"),
        ("sharing", "BROADCASTING"),
    ],
)
def test_a_consumers_option_of_another_kind_is_refused_by_name(name: str, wrong: object) -> None:
    with pytest.raises(InvalidOption, match=f"{name}="):
        consumer_options(NOT_LISTENING, "g", **{name: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "wrong"), [("delivery_timeout", "5"), ("timeout", None), ("buffer_bytes", True)])
def test_a_producers_option_of_another_kind_is_refused_by_name(name: str, wrong: Any) -> None:
    with pytest.raises(InvalidOption, match=f"{name}="):
        ProducerOptions(**{name: wrong})


def test_a_consumer_takes_durations_as_timedelta_and_the_start_as_datetime() -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    options = consumer_options(NOT_LISTENING, "g", commit_every=timedelta(minutes=1), start=when)
    assert (options.commit_every, options.start) == (60, when)


def test_a_start_that_no_clock_can_show_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"start=.* is too long ago"):
        consumer_options(NOT_LISTENING, "g", start=datetime(1, 1, 1))  # noqa: DTZ001 - as a program may write it


def test_a_producer_takes_durations_as_whole_numbers_and_as_timedelta() -> None:
    options = producer_options(SystemClock(), "me", timeout=3, delivery_timeout=timedelta(milliseconds=5))
    assert (options.timeout, options.delivery_timeout) == (3, 0.005)


def test_every_option_of_a_consumer_can_be_passed_as_a_keyword() -> None:
    assert set(ConsumerSettings.__annotations__) == set(ConsumerOptions.__dataclass_fields__) - {"servers", "group"}


def test_every_setting_of_a_producer_can_be_passed() -> None:
    assert set(ProducerSettings.__annotations__) == set(ProducerOptions.__dataclass_fields__)


def test_wrong_options_leave_no_history_behind(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption):
        consumer_options(NOT_LISTENING, "g", history=tmp_path / "history", stop_timeout=-1)
    assert not (tmp_path / "history").exists()


def test_a_member_with_a_history_has_one_name_in_it_and_at_the_broker(tmp_path: Path) -> None:
    options = consumer_options(NOT_LISTENING, "g", history=str(tmp_path))
    (file,) = tmp_path.iterdir()
    assert options.client_id == file.stem
    options.history.close()


def test_without_a_history_nothing_is_opened_and_the_id_is_left_to_the_member() -> None:
    options = consumer_options(NOT_LISTENING, "g")
    assert options.history is NO_HISTORY
    assert options.client_id is None


def test_the_folder_of_a_broadcasting_members_offsets_may_be_text() -> None:
    assert consumer_options(NOT_LISTENING, "g", offsets_folder="var/offsets").offsets_folder == Path("var/offsets")


def test_a_history_that_is_not_closed_ends_with_its_client(tmp_path: Path) -> None:
    """An unclosed file is an error in these tests."""
    app: App | None = App(NOT_LISTENING, group="g", history=tmp_path)
    assert isinstance(app, App)
    del app
    gc.collect()


@pytest.mark.lanemq(own_broker=True)
@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_is_all_a_run_needs_to_be_checked(
    lanemq_broker: EmbeddedBroker, kind: Callable[[Path], Any], tmp_path: Path
) -> None:
    with Producer(lanemq_broker.address, create="orders", history=kind(tmp_path)) as producer:
        producer.send("orders", {"id": 1}, key="k")
    with Consumer(lanemq_broker.address, group="g", topics="orders", history=kind(tmp_path)) as consumer:
        message = consumer.poll(timeout=30)
        assert message is not None
        consumer.done(message)
    text = "".join(file.read_text("utf-8") for file in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 2
    for event in ("send", "acked", "turn", "turn_end", "committed"):
        assert f'"e":"{event}"' in text


# what the document says

POSITIONAL = {"Consumers": {"servers", "group"}, "Producers": set[str]()}


def documented(title: str) -> dict[str, str]:
    """Options and their defaults in a section of docs/reference/options.md."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "options.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (.*?) \|", text.split(f"## {title}\n")[1].split("\n## ")[0], re.M)
    return dict(rows)


def default_of(field: Field[Any]) -> str:
    """As the document writes it."""
    if field.default is MISSING:
        return "`SystemClock()`"
    if field.default is NO_HISTORY:
        return "none"
    value = field.default
    return f"`{value}`" if isinstance(value, Enum) else f"`{value!r}`".replace("'", '"')


@pytest.mark.parametrize(("title", "options"), [("Consumers", ConsumerOptions), ("Producers", ProducerOptions)])
def test_the_document_lists_every_option_with_its_default(title: str, options: Any) -> None:
    expected = {each.name: default_of(each) for each in fields(options) if each.name not in POSITIONAL[title]}
    assert documented(title) == expected
