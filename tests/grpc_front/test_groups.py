"""Groups of a front: who is noted in them, and how they come by a member again. The members are none."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from lanemq.clock import SystemClock
from lanemq.grpc_front import groups
from lanemq.grpc_front.access import Access
from lanemq.grpc_front.answers import CallFailed
from lanemq.grpc_front.clients import GrpcClient
from lanemq.grpc_front.options import FrontOptions
from lanemq.grpc_front.port import CallHead
from lanemq.grpc_front.service import FrontService
from lanemq.model.errors import TopicNotFound
from lanemq.wire.grpc import messages as m
from lanemq.wire.grpc.codec import encode


class NoMember:
    """What a group keeps in place of a member."""

    made: ClassVar[list["NoMember"]] = []
    failing: ClassVar[list[Exception]] = []
    held: ClassVar[threading.Event | None] = None
    """A start waits for it, as one does whose broker does not answer."""

    def __init__(self, group: str, wanted: groups.Wanted, *_: object) -> None:
        self.group, self.wanted = group, wanted
        self.options = SimpleNamespace(client_id="member")
        self.thread, self.alive = self, True
        self.started = threading.Event()
        self.made.append(self)

    def start(self) -> None:
        if self.failing:
            raise self.failing.pop()
        self.started.set()
        if self.held is not None:
            assert self.held.wait(10)

    def stop(self) -> None:
        self.alive = False
        if self.held is not None:
            self.held.set()

    def follow(self, wanted: groups.Wanted) -> None:
        self.wanted = wanted

    def take(self, topic: str, most: int) -> None:
        return None

    def now_has(self, clients: object) -> None:
        pass

    def release(self) -> None:
        pass

    def withdraw(self) -> None:
        pass


class SomeRoutes:
    """Topics that exist: their names begin with 'there'."""

    async def ordered(self, topics: Any) -> bool:
        for topic in topics:
            if not topic.startswith("there"):
                raise TopicNotFound(17, f"topic {topic} does not exist")
        return True


@pytest.fixture(autouse=True)
def no_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "LaneMember", NoMember)
    monkeypatch.setattr(groups, "RESTART_SECONDS", 0.01)
    NoMember.made, NoMember.failing, NoMember.held = [], [], None


class Stage:
    def __init__(self, **options: Any) -> None:
        given = FrontOptions(servers="localhost:1", **options)
        routes: Any = SomeRoutes()
        self.service = FrontService(given, Access(None), routes, SimpleNamespace(), "boot", SystemClock())  # type: ignore[arg-type]
        self.tidying = asyncio.create_task(self.service.consumers.run())

    def head(self, client: str, method: str = "ReceiveMessage") -> CallHead:
        return CallHead(method, {"x-mq-client-id": client}, "here:1", 10.0)

    async def receive(self, client: str, group: str, topic: str) -> GrpcClient:
        request = m.ReceiveMessageRequest(
            m.Resource(name=group), m.QueueAt(m.Resource(name=topic)), m.FilterExpression(1, "*"), 1,
            auto_renew=True, long_polling_timeout=m.Duration.of_ms(1),
        )  # fmt: skip
        head = self.head(client)
        caller = self.service.caller(head)
        await self.service.receive(head, caller, request)
        return caller

    def wanted(self, group: str) -> dict[str, str]:
        found = self.service.consumers.groups.get(group)
        return {} if found is None or found.wanted is None else dict(found.wanted.tags)


def played(play: Callable[[Stage], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        stage = Stage(**options)
        try:
            async with asyncio.timeout(10):
                await play(stage)
        finally:
            stage.tidying.cancel()
            await stage.service.consumers.drain()

    asyncio.run(run())


async def until(done: Callable[[], bool]) -> None:
    for _ in range(1000):
        if done():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come")


def test_a_topic_that_does_not_exist_is_nothing_to_the_group() -> None:
    async def play(stage: Stage) -> None:
        for _ in range(2):
            with pytest.raises(TopicNotFound):
                await stage.receive("wrong", "g", "nowhere")
        await stage.receive("right", "g", "there")
        assert stage.wanted("g") == {"there": "*"}

    played(play)


def test_a_client_is_in_one_group_and_leaves_no_member_behind() -> None:
    async def play(stage: Stage) -> None:
        await stage.receive("c", "g", "there")
        await stage.receive("c", "h", "there-too")
        assert stage.wanted("h") == {"there-too": "*"}
        await until(lambda: "g" not in stage.service.consumers.groups)

    played(play)


def test_groups_are_limited_for_every_call() -> None:
    async def play(stage: Stage) -> None:
        await stage.receive("c", "g", "there")
        for _ in range(2):
            with pytest.raises(CallFailed, match="1 groups already"):
                await stage.receive("d", "h", "there")

    played(play, max_groups=1)


def test_all_that_a_client_subscribes_to_replaces_what_it_did_before() -> None:
    async def play(stage: Stage) -> None:
        client = await stage.receive("c", "g", "there")
        entry = m.SubscriptionEntry(m.Resource(name="there-too"), m.FilterExpression(1, "*"))
        subscription = m.Subscribing(m.Resource(name="g"), [entry])
        await stage.service.settings_for(client, m.Settings(m.ClientType.PUSH_CONSUMER, subscription=subscription))
        assert stage.wanted("g") == {"there-too": "*"}

    played(play)


def test_a_client_that_ended_while_it_subscribed_is_not_noted() -> None:
    async def play(stage: Stage) -> None:
        caller = stage.service.caller(stage.head("c"))
        ending = m.TerminationRequest(m.Resource(name="g"))
        await stage.service.answer(stage.head("c", "NotifyClientTermination"), encode(ending))
        with pytest.raises(CallFailed, match="has ended"):
            await stage.service.consumers.subscribe(caller, "g", {"there": "*"})
        assert stage.wanted("g") == {}

    played(play)


def test_a_member_that_ended_by_any_error_is_replaced() -> None:
    async def play(stage: Stage) -> None:
        NoMember.failing = [ExceptionGroup("its tasks", [RuntimeError("can't start new thread")])]
        await stage.receive("c", "g", "there")
        await until(lambda: bool(NoMember.made) and NoMember.made[-1].started.is_set())

    played(play)


def test_a_front_that_stops_while_a_member_starts_ends_that_member() -> None:
    async def play(stage: Stage) -> None:
        NoMember.held = threading.Event()
        await stage.receive("c", "g", "there")
        await until(lambda: bool(NoMember.made) and NoMember.made[-1].started.is_set())
        await stage.service.consumers.drain()
        assert [member.alive for member in NoMember.made] == [False]

    played(play)


def test_a_group_whose_member_is_starting_is_kept_until_the_member_has_ended() -> None:
    async def play(stage: Stage) -> None:
        NoMember.held = threading.Event()
        caller = await stage.receive("c", "g", "there")
        await until(lambda: bool(NoMember.made) and NoMember.made[-1].started.is_set())
        await stage.service.answer(stage.head(caller.id, "NotifyClientTermination"), encode(m.TerminationRequest()))
        await until(lambda: stage.wanted("g") == {})
        assert not stage.service.consumers.groups["g"].idle
        NoMember.held.set()
        await until(lambda: "g" not in stage.service.consumers.groups)
        assert [member.alive for member in NoMember.made] == [False]

    played(play)


def test_other_topics_of_a_group_do_not_replace_its_member() -> None:
    async def play(stage: Stage) -> None:
        await stage.receive("c", "g", "there")
        await until(lambda: bool(NoMember.made) and NoMember.made[-1].started.is_set())
        await stage.receive("d", "g", "there-too")
        await until(lambda: len(NoMember.made[0].wanted.tags) == 2)
        await stage.service.answer(stage.head("c", "NotifyClientTermination"), encode(m.TerminationRequest()))
        await until(lambda: dict(NoMember.made[0].wanted.tags) == {"there-too": "*"})
        assert len(NoMember.made) == 1

    played(play)


def test_other_tags_of_a_group_replace_its_member() -> None:
    async def play(stage: Stage) -> None:
        client = await stage.receive("c", "g", "there")
        await until(lambda: bool(NoMember.made) and NoMember.made[-1].started.is_set())
        entry = m.SubscriptionEntry(m.Resource(name="there"), m.FilterExpression(1, "red"))
        subscription = m.Subscribing(m.Resource(name="g"), [entry])
        await stage.service.settings_for(client, m.Settings(m.ClientType.PUSH_CONSUMER, subscription=subscription))
        await until(lambda: len(NoMember.made) == 2)
        assert not NoMember.made[0].alive

    played(play)


def test_an_error_does_not_end_the_care_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(stage: Stage) -> None:
        tidied, tidy = asyncio.Event(), stage.service.handing.tidy

        def once(present: Any) -> None:
            monkeypatch.setattr(stage.service.handing, "tidy", lambda _: tidied.set())
            raise RuntimeError(f"broken beside {tidy}")

        monkeypatch.setattr(stage.service.handing, "tidy", once)
        await tidied.wait()

    played(play)


def test_telemetry_reads_the_next_settings_when_the_client_has_taken_the_last_answer() -> None:
    async def play(stage: Stage) -> None:
        read = list[int]()

        async def settings() -> Any:
            for number in range(100):
                read.append(number)
                yield encode(m.TelemetryCommand(settings=m.Settings(m.ClientType.PRODUCER)))

        parts = aiter(stage.service.converse(stage.head("c", "Telemetry"), settings()))
        await anext(parts)
        await asyncio.sleep(0.01)
        assert read == [0], "answers would be queued without a limit"

    played(play)
