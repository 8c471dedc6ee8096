"""Administration of coordinated groups: moving a group to the cluster's coordinator and back, and comparing logs."""

from lanemq.client.admin.calls import AdminClient
from lanemq.model.errors import UsageError
from lanemq.model.names import check_group
from lanemq.wire.bodies import Body
from lanemq.wire.codes import RequestCode
from lanemq.wire.lane_bodies import (
    CompareAnswer,
    CompareBody,
    CoordinateAnswer,
    CoordinateBody,
    LeaderAnswer,
    StandbyBody,
)


def leader_note(leader: LeaderAnswer | None) -> str:
    """Term, state and standbys of a coordinator, as the rest of a line that names it; empty if they are not known."""
    if leader is None:
        return ""
    standbys = [f"standby {each.name} {_behind(each)}" for each in leader.standbys]
    return "".join(
        f", {part}" for part in (f"term {leader.term}", f"state in {leader.store}", *standbys, *leader.problems)
    )


def _behind(standby: StandbyBody) -> str:
    how = "confirms changes" if standby.confirms else "asynchronous"
    return f"({how}, lag not known)" if standby.lag_bytes < 0 else f"({how}, {standby.lag_bytes:,} bytes behind)"


class CoordinatedAdmin(AdminClient):
    """Moves groups. Blocking; not thread-safe."""

    def move(self, group: str, *, out: bool = False, apply: bool = False) -> CoordinateAnswer:
        """Moves a group to the coordinator, or `out` of it; without `apply`, only says what would happen."""
        body = CoordinateBody(group=check_group(group), out=out, apply=apply)
        return CoordinateAnswer.decode(self._ask(RequestCode.LANE_COORDINATE, body))

    def confirm_queues(self, group: str, *, apply: bool = False) -> CoordinateAnswer:
        """Lets new queues of a coordinated group's topics get owners; without `apply`, only names them."""
        body = CoordinateBody(group=check_group(group), confirm=True, apply=apply)
        return CoordinateAnswer.decode(self._ask(RequestCode.LANE_COORDINATE, body))

    def compare(self, group: str, *, apply: bool = False) -> CompareAnswer:
        """Compares what a coordinated group has read with what the brokers have.

        With `apply`, its progress above the last message that is the same is dropped.
        """
        body = CompareBody(group=check_group(group), apply=apply)
        return CompareAnswer.decode(self._ask(RequestCode.LANE_COMPARE, body))

    def leader(self) -> LeaderAnswer | None:
        """Who coordinates the groups of the cluster, and how its state does; None if nobody does."""
        if self._calls.coordinator() is None:
            return None
        return LeaderAnswer.decode(self._ask(RequestCode.LANE_LEADER, None))

    def _ask(self, code: RequestCode, body: Body | None) -> bytes:
        address = self._calls.coordinator()
        if address is None:
            raise UsageError("this cluster has no coordinator: start one with lanemq coordinator, see its --help")
        return self._calls.ask(address, code, body=b"" if body is None else body.encode()).body
