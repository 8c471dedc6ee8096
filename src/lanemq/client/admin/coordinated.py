"""Administration of coordinated groups: moving a group to the cluster's coordinator, and back."""

from lanemq.client.admin.calls import AdminClient
from lanemq.model.errors import UsageError
from lanemq.model.names import check_group
from lanemq.wire.codes import RequestCode
from lanemq.wire.lane_bodies import CoordinateAnswer, CoordinateBody


class CoordinatedAdmin(AdminClient):
    """Moves groups. Blocking; not thread-safe."""

    def move(self, group: str, *, out: bool = False, apply: bool = False) -> CoordinateAnswer:
        """Moves a group to the coordinator, or `out` of it; without `apply`, only says what would happen."""
        address = self._calls.coordinator()
        if address is None:
            raise UsageError("this cluster has no coordinator: start one with lanemq coordinator, see its --help")
        body = CoordinateBody(group=check_group(group), out=out, apply=apply).encode()
        return CoordinateAnswer.decode(self._calls.ask(address, RequestCode.LANE_COORDINATE, body=body).body)
