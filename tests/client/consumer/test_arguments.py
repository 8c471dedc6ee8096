"""What handlers are called with: dependencies, middleware, and what is refused before the first message."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from tests.client.consumer.fakes import message

from lanemq import Depends, InvalidOption, Message, Undecodable
from lanemq.client.codec import JsonCodec
from lanemq.client.consumer.turns.arguments import call_in_context, missing_types, read_signature


class Session:
    """Something that is opened for one turn."""


class Pool:
    """Something that lives as long as the app."""


SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


def open_session(it: Message) -> Iterator[str]:
    SEEN.append(f"open {it.key}")
    try:
        yield "session"
    except ValueError:
        SEEN.append("roll back")
        raise
    finally:
        SEEN.append("close")


def call(
    handler: Callable[..., Any], *middleware: Any, given: Any = None, batched: bool = False, **provided: Any
) -> Any:
    signature = read_signature(handler, JsonCodec(), batched=batched)
    made = call_in_context(handler, signature, middleware, {type(each): each for each in provided.values()})
    result = made.call(message(0, key="k", body=b'{"n": 1}') if given is None else given)
    return asyncio.run(result) if made.is_async else result


def test_a_dependency_is_made_for_the_turn_and_ended_after_it() -> None:
    def handler(event: dict[str, int], session: Annotated[str, Depends(open_session)]) -> None:
        SEEN.append((event, session))

    call(handler)
    assert SEEN == ["open k", ({"n": 1}, "session"), "close"]


def test_a_handler_without_annotations_gets_the_event_and_the_message() -> None:
    def handler(event, message):  # type: ignore[no-untyped-def]
        SEEN.append((event, message.key))

    call(handler)
    assert SEEN == [({"n": 1}, "k")]


def test_a_failure_of_the_handler_reaches_the_dependency() -> None:
    def handler(event: dict[str, int], session: Annotated[str, Depends(open_session)]) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        call(handler)
    assert SEEN == ["open k", "roll back", "close"]


def test_dependencies_need_others_and_objects_of_the_app() -> None:
    pool = Pool()

    def repository(found: Annotated[Pool, Depends()], it: Message) -> tuple[Pool, str | None]:
        return found, it.key

    def handler(it: Message, made: Annotated[Any, Depends(repository)], direct: Annotated[Pool, Depends]) -> None:
        SEEN.append((it.key, made, direct))

    call(handler, pool=pool)
    assert [("k", (pool, "k"), pool)] == SEEN


def test_async_handlers_have_async_and_plain_dependencies() -> None:
    async def connect() -> str:
        return "connected"

    async def stream(session: Annotated[str, Depends(open_session)]) -> AsyncIterator[str]:
        yield f"stream of {session}"
        SEEN.append("end of stream")

    async def handler(
        event: dict[str, int], a: Annotated[str, Depends(connect)], b: Annotated[str, Depends(stream)]
    ) -> None:
        SEEN.append((a, b))

    call(handler)
    assert SEEN == ["open k", ("connected", "stream of session"), "end of stream", "close"]


def outer(messages: Sequence[Message]) -> Iterator[None]:
    SEEN.append(f"outer {len(messages)}")
    yield
    SEEN.append("outer done")


def inner(messages: Sequence[Message]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        SEEN.append(type(error).__name__)
        raise


def test_middleware_runs_around_the_turn_the_first_one_outermost() -> None:
    def handler(event: Any) -> None:
        SEEN.append("turn")

    call(handler, outer, inner)
    assert SEEN == ["outer 1", "turn", "outer done"]


def test_middleware_sees_failures_also_of_the_body() -> None:
    def handler(event: dict[str, int]) -> None: ...

    with pytest.raises(Undecodable):
        call(handler, inner, given=message(0, body=b"no json"))
    assert SEEN == ["Undecodable"]


def test_a_batch_is_one_turn() -> None:
    def handler(events: list[dict[str, int]]) -> None:
        SEEN.append(events)

    call(handler, outer, given=(message(0, body=b'{"n": 1}'), message(1, body=b'{"n": 2}')), batched=True)
    assert SEEN == ["outer 2", [{"n": 1}, {"n": 2}], "outer done"]


def test_middleware_of_either_kind_surrounds_a_coroutine() -> None:
    async def around(messages: Sequence[Message]) -> AsyncIterator[None]:
        SEEN.append("async")
        yield

    async def handler(event: Any) -> None:
        SEEN.append("turn")

    call(handler, around, outer)
    assert SEEN == ["async", "outer 1", "turn", "outer done"]


def test_what_a_handler_needs_and_nothing_provides_is_found() -> None:
    def repository(found: Annotated[Pool, Depends()]) -> Pool:
        return found

    def handler(event: Any, made: Annotated[Any, Depends(repository)]) -> None: ...

    signature = read_signature(handler, JsonCodec(), batched=False)
    assert list(missing_types(signature, {})) == [("found", Pool)]
    assert list(missing_types(signature, {Pool: Pool()})) == []


async def slow() -> str:
    return ""


async def slow_stream() -> AsyncIterator[str]:
    yield ""


def unclear(what: int) -> str:
    return ""


def chicken(egg: "Annotated[str, Depends(egg)]") -> str:
    return ""


def egg(chicken: Annotated[str, Depends(chicken)]) -> str:
    return ""


def with_circle(event: Any, made: Annotated[str, Depends(egg)]) -> None: ...
def with_dependency_as_default(event: Any, made: str = Depends(slow)) -> None: ...  # type: ignore[assignment]
def with_async_dependency(event: Any, made: Annotated[str, Depends(slow)]) -> None: ...
def with_unclear_dependency(event: Any, made: Annotated[str, Depends(unclear)]) -> None: ...
def with_value_as_dependency(event: Any, made: Annotated[str, Depends(5)]) -> None: ...  # type: ignore[arg-type]
def with_two_events(event: dict[str, int], other: Session) -> None: ...
def with_unknown_type(event: Session) -> None: ...
def without_parameters() -> None: ...
def hidden_by_a_decorator(*given: Any) -> None: ...
def with_async_context(event: Any, made: Annotated[str, Depends(asynccontextmanager(slow_stream))]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (with_async_dependency, "slow is async, and the handler is not"),
        (with_circle, "egg, which needs itself"),
        (with_dependency_as_default, r"parameter made of .* has Depends as its default"),
        (with_unclear_dependency, "parameter what of unclear"),
        (with_value_as_dependency, "needs a function"),
        (with_two_events, "must take"),
        (with_unknown_type, "parameter event of handler with_unknown_type: Session cannot be decoded"),
        (without_parameters, "must take"),
        (hidden_by_a_decorator, "put @functools.wraps on the wrapper"),
        (with_async_context, "slow_stream is async, and the handler is not"),
    ],
)
def test_mistakes_are_found_at_registration(handler: Any, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        read_signature(handler, JsonCodec(), batched=False)


# decorators, local types, classes and objects


@dataclass
class Numbered:
    n: int


def passing_on(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as people write it: a plain function, whatever it is put around."""

    @functools.wraps(function)
    def wrapper(*given: Any, **named: Any) -> Any:
        SEEN.append("decorator")
        return function(*given, **named)

    return wrapper


class Timed:
    """A decorator that is a class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *given: Any) -> Any:
        SEEN.append("decorator")
        return self.function(*given)


@pytest.mark.parametrize("decorator", [passing_on, Timed, lambda function: functools.partial(passing_on(function))])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_decorated_handler_gets_its_type_and_is_awaited(decorator: Any, kind: str) -> None:
    def plain(event: Numbered) -> None:
        SEEN.append(event)

    async def coroutine(event: Numbered) -> None:
        SEEN.append(event)

    handler = decorator({"plain": plain, "async": coroutine}[kind])
    call(handler)
    call(handler, outer)
    assert ["decorator", Numbered(1), "outer 1", "decorator", Numbered(1), "outer done"] == SEEN


def test_a_decorator_that_answers_for_a_coroutine_function_needs_no_coroutine() -> None:
    async def handler(event: Any) -> None:
        raise AssertionError("the decorator does not call it")

    @functools.wraps(handler)
    def muted(event: Any) -> None:
        SEEN.append("muted")

    call(muted)
    assert SEEN == ["muted"]


class Repository:
    """Made for each turn, with what it needs."""

    def __init__(self, pool: Annotated[Pool, Depends()], it: Message) -> None:
        self.found = (pool, it.key)


class Opening:
    """An object that is called."""

    def __call__(self, it: Message) -> Iterator[str]:
        yield f"opened for {it.key}"
        SEEN.append("closed")


def test_classes_and_objects_make_dependencies() -> None:
    def handler(
        event: Any, made: Annotated[Repository, Depends(Repository)], opened: Annotated[str, Depends(Opening())]
    ) -> None:
        SEEN.append((made.found[1], opened))

    call(handler, pool=Pool())
    assert SEEN == [("k", "opened for k"), "closed"]


def test_a_context_manager_of_contextlib_is_entered_like_a_function_with_yield() -> None:
    def handler(event: Any, session: Annotated[str, Depends(contextmanager(open_session))]) -> None:
        SEEN.append(session)

    async def stream() -> AsyncIterator[str]:
        yield "stream"
        SEEN.append("end")

    async def coroutine(event: Any, made: Annotated[str, Depends(asynccontextmanager(stream))]) -> None:
        SEEN.append(made)

    call(handler, contextmanager(outer))
    call(coroutine, contextmanager(outer))
    assert SEEN == ["outer 1", "open k", "session", "close", "outer done", "outer 1", "stream", "end", "outer done"]


def test_annotations_that_are_text_may_name_local_types() -> None:
    @dataclass
    class Local:
        n: int

    def handler(event: "Local") -> "OnlyForTypeCheckers":  # type: ignore[name-defined]  # noqa: F821
        SEEN.append(event)

    call(handler)
    assert [Local(1)] == SEEN


@pytest.mark.parametrize(
    ("annotation", "batched", "why"),
    [
        (Numbered, True, r"annotated Numbered, but with batch_size above 1 it gets a list: write list\[Numbered\]"),
        (dict[str, int], True, r"write list\[dict\[str, int\]\]"),
        (Message, True, r"write list\[Message\]"),
        (list[Message], False, "but gets one message: write Message, or set batch_size"),
    ],
)
def test_one_and_many_are_not_confused(annotation: Any, batched: bool, why: str) -> None:
    def handler(given: Any) -> None: ...

    handler.__annotations__ = {"given": annotation}
    with pytest.raises(InvalidOption, match=why):
        read_signature(handler, JsonCodec(), batched=batched)


def test_async_middleware_around_a_plain_function_is_refused() -> None:
    async def around(messages: Sequence[Message]) -> AsyncIterator[None]:
        yield

    def handler(event: Any) -> None: ...

    with pytest.raises(InvalidOption, match="around is async, but handler"):
        call(handler, around)
