"""Says who leads, and how its state does."""

from lanemq.broker.context import GroupContext
from lanemq.broker.dispatch import Handler
from lanemq.client.coordination import Leader
from lanemq.coordinator.background_answers import BackgroundAnswers
from lanemq.coordinator.store import StateStore
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.lane_bodies import LeaderAnswer, StandbyBody


class LeaderReport:
    """Request 4213."""

    def __init__(self, context: GroupContext, store: StateStore, leader: Leader, answers: BackgroundAnswers) -> None:
        self._context = context
        self._store = store
        self._leader = leader
        self._answers = answers
        self._since = context.clock.now()

    def table(self) -> dict[int, Handler]:
        return {RequestCode.LANE_LEADER: self._report}

    def _report(self, peer: Peer, request: Command) -> None:
        self._answers.begin(peer, request, self._answer())

    async def _answer(self) -> LeaderAnswer:
        store = self._store
        state = await self._context.row_thread.call(store.safety)
        return LeaderAnswer(
            address=str(self._leader.address),
            term=self._leader.term,
            leads_millis=self._context.clock.now() - self._since,
            store=store.shown,
            shared=store.shared,
            write_millis=store.last_write_ms,
            standbys=[
                StandbyBody(name=name, confirms=confirms, lag_bytes=lag) for name, confirms, lag in state.standbys
            ],
            problems=list(state.problems),
        )
