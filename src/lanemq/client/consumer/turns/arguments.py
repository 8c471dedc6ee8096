"""What a handler is called with: its signature, read once at registration.

    def on_order(event: OrderPaid, message: Message, session: Annotated[Session, Depends(open_session)]) -> None: ...

A parameter annotated `Message` gets the message. One annotated with `Depends` gets what a function makes for this turn,
or an object that `App.provide` was given. The remaining one gets the body, decoded as its annotation says.

Everything that can be wrong is found when the handler is registered, so that a mistake shows at the start and does not
park keys. Handlers without dependencies and apps without middleware pay nothing for them: their call is made without
this module's contexts.
"""

import contextlib
import inspect
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableSequence,
    Reversible,
    Sequence,
)
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from lanemq._fast import compiled
from lanemq.client.codec import Codec, Decode, decoder_for, type_name
from lanemq.client.consumer.turns.handler import (
    Batch,
    Handler,
    HandlerCall,
    innermost_function,
    is_coroutine_function,
    returns_awaitable,
    wraps_coroutine_function,
)
from lanemq.client.message import Message
from lanemq.model.errors import CodecError, InvalidOption, Undecodable

T = TypeVar("T")

Provided: TypeAlias = Mapping[type, object]
"""What `App.provide` was given, by type."""

Middleware: TypeAlias = Callable[[Sequence[Message]], Iterator[None] | AsyncIterator[None]]
"""A function with one `yield`, where the turn runs. Its argument is the messages of the turn, usually one."""


@dataclass(frozen=True, slots=True)
class Depends:
    """Marks a parameter that is made for each turn: `session: Annotated[Session, Depends(open_session)]`.

    `make` takes nothing, the message (`message: Message`), or further parameters with `Depends`. If it contains a
    `yield`, with or without `@contextmanager` above it, the rest of it runs when the turn has ended, and a failure of
    the handler is raised at the `yield`. It may be a coroutine function if the handler is one. Without `make`, the
    parameter gets the object of its type that `App.provide` was given.
    """

    make: Callable[..., Any] | None = None


class Parameter(NamedTuple):
    """One parameter that does not get the event."""

    name: str
    wanted: Any
    depends: Depends | None
    """None: it gets the message."""
    needs: "tuple[Parameter, ...]" = ()
    """The parameters of `depends.make`."""
    is_context: bool = False
    """Whether `depends.make` contains a `yield`."""


class Signature(NamedTuple):
    """What a handler takes, in the order of its parameters."""

    name: str
    parameters: tuple[Parameter | None, ...]
    """None stands for the event."""
    event: Decode | None
    batched: bool

    @property
    def has_dependencies(self) -> bool:
        return any(True for _ in self.dependencies())

    def dependencies(self) -> Iterator[tuple[Parameter, Depends]]:
        """The parameters with `Depends`, also those of the functions that make others."""
        parameters = [each for each in self.parameters if each is not None]
        while parameters:
            each = parameters.pop()
            if each.depends is not None:
                yield each, each.depends
            parameters += each.needs


def read_signature(handler: Handler, codec: Codec, *, batched: bool) -> Signature:
    """The signature of a handler; raises `InvalidOption` if it cannot be called, or its event cannot be decoded."""
    name = function_name(handler)
    if not callable(handler):
        raise InvalidOption(f"handler {handler!r} is a {type(handler).__name__}: it must be a function")
    parameters = _required(handler, name)
    hints = _hints(handler, f"handler {name}", parameters)
    wanted = [hints.get(each.name, Any) for each in parameters]
    roles: list[Parameter | None] = [
        _role(name, each.name, kind) for each, kind in zip(parameters, wanted, strict=True)
    ]
    rest = [at for at, role in enumerate(roles) if role is None]
    has_message = any(role is not None and role.depends is None for role in roles)
    if len(rest) == 2 and not has_message and wanted[rest[1]] is Any:
        second = rest.pop()
        roles[second] = Parameter(parameters[second].name, Message, None)
    if len(rest) > 1 or not roles:
        raise InvalidOption(
            f"handler {name} must take (event), (event, message) or (message: Message), and otherwise only parameters "
            f"annotated with Depends, not {inspect.signature(handler)}{_decorator_hint(parameters, handler)}"
        )
    for parameter, role, kind in zip(parameters, roles, wanted, strict=True):
        _check_batch(f"parameter {parameter.name} of handler {name}", role, kind, batched=batched)
    decode = _event_decoder(name, parameters[rest[0]].name, wanted[rest[0]], codec, batched=batched) if rest else None
    signature = Signature(name, tuple(roles), decode, batched)
    if not returns_awaitable(handler):
        _refuse_async_makers(signature)
    return signature


def plain_call(handler: Handler, signature: Signature) -> HandlerCall:
    """How to call a handler that takes an event, a message, or both."""
    is_async, name = returns_awaitable(handler), signature.name
    handler = awaitable_call(handler)
    roles, decode = signature.parameters, signature.event
    if decode is None:
        return HandlerCall(name, is_async, handler)
    message_at = -1 if len(roles) == 1 else 1 if roles[0] is None else 0
    if signature.batched:
        return HandlerCall(name, is_async, _batch_call(handler, decode, message_at))
    return HandlerCall(name, is_async, event_call(handler, decode, message_at, (CodecError,), _undecodable))


def awaitable_call(handler: Handler) -> Handler:
    """The handler; a decorator's plain function around a coroutine function as a coroutine function."""
    if is_coroutine_function(handler) or not wraps_coroutine_function(handler):
        return handler

    async def awaited(*arguments: Any) -> Any:
        result = handler(*arguments)
        return await result if inspect.isawaitable(result) else result

    return awaited


@compiled
def event_call(
    handler: Callable[..., Any],
    decode: Decode,
    message_at: int,
    errors: tuple[type[Exception], ...],
    explain: Callable[[Message, Exception], Exception],
) -> Callable[[Message], Any]:
    """Calls the handler with the decoded event, and with the message as argument number `message_at`; -1: without it.

    `errors` of the decoder become those of `explain`.
    """

    def event_of(message: Message) -> Any:
        try:
            return decode(message.body)
        except errors as error:
            raise explain(message, error) from error

    if message_at < 0:
        return lambda message: handler(event_of(message))
    if message_at:
        return lambda message: handler(event_of(message), message)
    return lambda message: handler(message, event_of(message))


def _batch_call(handler: Callable[..., Any], decode: Decode, message_at: int) -> Callable[[Batch], Any]:
    if message_at < 0:
        return lambda messages: handler(_events(decode, messages))
    if message_at:
        return lambda messages: handler(_events(decode, messages), messages)
    return lambda messages: handler(messages, _events(decode, messages))


def _undecodable(message: Message, error: Exception) -> Undecodable:
    return Undecodable(f"{message}: {error}")


def call_in_context(
    handler: Handler, signature: Signature, middleware: Sequence[Middleware], provided: Provided
) -> HandlerCall:
    """How to call a handler inside its middleware, with its dependencies made for each turn."""
    if returns_awaitable(handler):
        handler = awaitable_call(handler)
        return HandlerCall(signature.name, True, partial(_turn_async, handler, signature, tuple(middleware), provided))
    if wrong := [each for each in middleware if inspect.isasyncgenfunction(innermost_function(each))]:
        raise InvalidOption(
            f"middleware {function_name(wrong[0])} is async, but handler {signature.name} is a plain function, which "
            f"runs on a thread: write the middleware with `def`, or the handler with `async def`"
        )
    return HandlerCall(signature.name, False, partial(_turn, handler, signature, tuple(middleware), provided))


def missing_types(signature: Signature, provided: Provided) -> Iterator[tuple[str, Any]]:
    """The parameters that wait for an object of a type that was not provided."""
    for each, depends in signature.dependencies():
        if depends.make is None and each.wanted not in provided:
            yield each.name, each.wanted


# one turn, inside its contexts


def _turn(
    handler: Handler, signature: Signature, middleware: tuple[Middleware, ...], provided: Provided, delivered: Any
) -> Any:
    with contextlib.ExitStack() as stack:
        for each in middleware:
            stack.enter_context(_context(each(_batch(delivered, signature))))
        made = [
            _argument(role, stack, provided, delivered) if role is not None else None for role in signature.parameters
        ]
        return handler(*_with_event(signature, made, delivered))


def _argument(role: Parameter, stack: contextlib.ExitStack, provided: Provided, delivered: Any) -> Any:
    if role.depends is None:
        return delivered
    make = role.depends.make
    if make is None:
        return provided[role.wanted]
    made = make(**{each.name: _argument(each, stack, provided, delivered) for each in role.needs})
    return stack.enter_context(_context(made)) if role.is_context else made


async def _turn_async(
    handler: Handler, signature: Signature, middleware: tuple[Middleware, ...], provided: Provided, delivered: Any
) -> Any:
    async with contextlib.AsyncExitStack() as stack:
        for each in middleware:
            await _entered(each(_batch(delivered, signature)), stack)
        made = [
            await _async_argument(role, stack, provided, delivered) if role is not None else None
            for role in signature.parameters
        ]
        return await handler(*_with_event(signature, made, delivered))


async def _async_argument(role: Parameter, stack: contextlib.AsyncExitStack, provided: Provided, delivered: Any) -> Any:
    if role.depends is None:
        return delivered
    make = role.depends.make
    if make is None:
        return provided[role.wanted]
    made = make(**{each.name: await _async_argument(each, stack, provided, delivered) for each in role.needs})
    if role.is_context:
        return await _entered(made, stack)
    return await made if inspect.isawaitable(made) else made


async def _entered(made: Any, stack: contextlib.AsyncExitStack) -> Any:
    context = _context(made)
    if isinstance(context, contextlib.AbstractAsyncContextManager):
        return await stack.enter_async_context(context)
    return stack.enter_context(context)


def _context(made: Any) -> Any:
    """The context of what a function with a `yield` returned: a generator, or the context of a decorator above it."""
    if inspect.isgenerator(made):
        return contextlib.contextmanager(lambda: made)()
    if inspect.isasyncgen(made):
        return contextlib.asynccontextmanager(lambda: made)()
    is_context = isinstance(made, (contextlib.AbstractContextManager, contextlib.AbstractAsyncContextManager))
    return made if is_context else contextlib.nullcontext(made)


def has_yield(make: Callable[..., Any]) -> bool:
    """Whether a function is a context: it contains a `yield`, with or without `@contextmanager` above it."""
    if inspect.isclass(make):
        return False
    function = innermost_function(make)
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _with_event(signature: Signature, made: list[Any], delivered: Any) -> list[Any]:
    """The arguments; the event is decoded last, inside the middleware, which sees its error."""
    if signature.event is not None:
        event = _events if signature.batched else _event
        made[signature.parameters.index(None)] = event(signature.event, delivered)
    return made


def _batch(delivered: Any, signature: Signature) -> Batch:
    return delivered if signature.batched else (delivered,)


def _event(decode: Decode, message: Message) -> Any:
    try:
        return decode(message.body)
    except CodecError as error:
        raise _undecodable(message, error) from error


def _events(decode: Decode, messages: Batch) -> list[Any]:
    return [_event(decode, message) for message in messages]


# reading a signature


def function_name(function: Any) -> str:
    """The name of a function as a reader of the program knows it, also of a `functools.partial`, or of a class's."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__qualname__)


def _required(function: Handler, name: str) -> list[inspect.Parameter]:
    """The parameters without default; all must be positional."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        every = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise InvalidOption(f"the parameters of {name} cannot be read: {error}; wrap it in a function") from error
    for each in every:
        if isinstance(each.default, Depends) or each.default is Depends:
            raise InvalidOption(
                f"parameter {each.name} of {name} has Depends as its default, which nothing would replace: write it as "
                f"an annotation, `{each.name}: Annotated[..., Depends(...)]`"
            )
    required = [each for each in every if each.default is each.empty]
    if wrong := [each.name for each in required if each.kind is inspect.Parameter.KEYWORD_ONLY]:
        raise InvalidOption(
            f"parameter {wrong[0]} of {name} is keyword-only: put it before the *, or give it a default"
        )
    return [each for each in required if each.kind in kinds]


def _hints(function: Handler, name: str, parameters: Sequence[inspect.Parameter]) -> dict[str, Any]:
    """The annotations of these parameters. Others may be names that only a type checker can read."""
    written = innermost_function(function.__init__ if inspect.isclass(function) else function)
    names = {each.name for each in parameters}
    try:
        declared = getattr(written, "__annotations__", {})
        wanted = SimpleNamespace(__annotations__={each: kind for each, kind in declared.items() if each in names})
        return get_type_hints(wanted, getattr(written, "__globals__", {}), _local_names(written), include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise InvalidOption(
            f"the annotations of {name} cannot be read: {error}; define or import the types at module level, and not "
            f"below `if TYPE_CHECKING:`"
        ) from error


def _local_names(function: Any) -> dict[str, Any]:
    """The names of the functions around a handler, whose own types it may use in annotations that are text."""
    if "<locals>" not in getattr(function, "__qualname__", ""):
        return {}
    names: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals is function.__globals__ and frame.f_code.co_name != "<module>":
            names = {**frame.f_locals, **names}  # the nearest one counts
        frame = frame.f_back
    return names


def _role(function: str, name: str, wanted: Any, makers: tuple[Any, ...] = ()) -> Parameter | None:
    """What a parameter other than the event gets; None for the event. `makers` are the functions that need it."""
    if get_origin(wanted) is Annotated:
        for each in get_args(wanted)[1:]:
            if isinstance(each, Depends):
                return _dependency(function, name, get_args(wanted)[0], each, makers)
            if each is Depends:
                return _dependency(function, name, get_args(wanted)[0], Depends(), makers)
    return Parameter(name, wanted, None) if _is_message(wanted) else None


def _dependency(function: str, name: str, wanted: Any, depends: Depends, makers: tuple[Any, ...]) -> Parameter:
    if depends.make is None:
        return Parameter(name, wanted, depends)
    if not callable(depends.make):
        raise InvalidOption(f"parameter {name} of {function}: Depends({depends.make!r}) needs a function")
    make = function_name(depends.make)
    if depends.make in makers:
        raise InvalidOption(f"parameter {name} of {function} needs {make}, which needs itself: break the circle")
    parameters = _required(depends.make, make)
    hints = _hints(depends.make, make, parameters)
    needs = []
    for each in parameters:
        need = _role(make, each.name, hints.get(each.name, Any), (*makers, depends.make))
        if need is None:
            raise InvalidOption(
                f"parameter {each.name} of {make}, which makes {name} for {function}, has no meaning: annotate it with "
                f"Message or Depends, or give it a default"
            )
        needs.append(need)
    return Parameter(name, wanted, depends, tuple(needs), has_yield(depends.make))


def _is_message(wanted: Any) -> bool:
    return wanted is Message or Message in get_args(wanted)


_LISTS = (list, tuple, MutableSequence, Sequence, Collection, Reversible, Iterable)
"""What a parameter of a handler with batches may be: of the events of a turn, or of its messages."""


def _check_batch(parameter: str, role: Parameter | None, wanted: Any, *, batched: bool) -> None:
    """Refuses an annotation of one event or message where the handler gets lists, and the other way round."""
    if role is not None and role.depends is not None:
        return
    wanted = _unmarked(wanted)
    is_list = (get_origin(wanted) or wanted) in _LISTS
    if batched and not is_list and wanted not in (Any, object):
        raise InvalidOption(
            f"{parameter} is annotated {type_name(wanted)}, but with batch_size above 1 it gets a list: write "
            f"list[{type_name(wanted)}]"
        )
    if role is not None and is_list and not batched:
        raise InvalidOption(
            f"{parameter} is annotated {type_name(wanted)}, but gets one message: write Message, or set batch_size"
        )


def _unmarked(wanted: Any) -> Any:
    """An annotation without the `Annotated` or the name (`type Orders = ...`) around it."""
    while get_origin(wanted) is Annotated or type(wanted).__name__ == "TypeAliasType":
        wanted = get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted.__value__
    return wanted


def _decorator_hint(parameters: Sequence[inspect.Parameter], handler: Handler) -> str:
    """What to do about a decorator that hides the parameters of the handler."""
    every = inspect.signature(handler).parameters.values()
    hidden = not parameters and any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in every)
    return "; if it is decorated, put @functools.wraps on the wrapper of its decorator" if hidden else ""


def _event_decoder(function: str, name: str, wanted: Any, codec: Codec, *, batched: bool) -> Decode:
    if batched:
        wanted = (get_args(_unmarked(wanted)) or (Any,))[0]
    try:
        return decoder_for(codec, wanted)
    except InvalidOption as error:
        raise InvalidOption(f"parameter {name} of handler {function}: {error}") from error


def _refuse_async_makers(signature: Signature) -> None:
    """Called for a handler that is a plain function: it cannot wait for what makes its arguments."""
    for each, depends in signature.dependencies():
        make = depends.make
        function = None if make is None or inspect.isclass(make) else innermost_function(make)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidOption(
                f"parameter {each.name} of handler {signature.name}: {function_name(make)} is async, and the handler "
                f"is not: write the handler with `async def`, or {function_name(make)} with `def`"
            )


def provided_type(value: object, as_type: type | None) -> type:
    """The type under which an object is provided."""
    if as_type is None:
        return type(value)
    if not isinstance(as_type, type):
        raise InvalidOption(f"as_type={as_type!r} must be a class, such as {type_name(type(value))}")
    return as_type
