"""Members are notified of changes of their groups in slices: however many there are, other clients do not wait."""

import asyncio
from typing import cast

import pytest
from tests.net.test_loop_slices import Ticking, iterations

from lanemq.broker.notices import Notices
from lanemq.core.brokering.members.group import ConnectionId, GroupHeartbeat
from lanemq.core.brokering.members.membership import Membership
from lanemq.model.units import Millis
from lanemq.net.serving.loop_slices import SLICE_NS, LoopSlices
from lanemq.net.serving.peer import Peer
from lanemq.wire.command import FrameDecoder, decode_command


class Member:
    """A connection on which ten frames are queued in one turn."""

    def __init__(self, number: int, clock: Ticking, share: float) -> None:
        self.number = number
        self.frames: list[bytes] = []
        self._clock = clock
        self._cost = int(SLICE_NS * share)

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)
        self._clock.time += self._cost

    @property
    def groups(self) -> list[str]:
        return [decode_command(FrameDecoder().feed(frame)[0]).ext["consumerGroup"] for frame in self.frames]


class Groups:
    """Groups with the same members."""

    def __init__(self, groups: int, members: int, share: float = 0.1) -> None:
        self.names = [f"g{number:02}" for number in range(groups)]
        clock, membership = Ticking(), Membership()
        self.notices = Notices(membership, LoopSlices(asyncio.get_running_loop(), clock))
        self.members = [Member(number, clock, share) for number in range(members)]
        for member in self.members:
            self.notices.connected(cast("Peer", member))
            beats = dict.fromkeys(self.names, GroupHeartbeat(()))
            membership.heartbeat(ConnectionId(member.number), f"c{member.number}", beats, now=Millis(0))

    @property
    def sent(self) -> int:
        return sum(len(member.frames) for member in self.members)


@pytest.mark.parametrize(("share", "at_once"), [(0.1, 10), (0.0, 100)], ids=["slices", "a clock that stands still"])
def test_members_of_many_groups_are_notified_in_slices(share: float, at_once: int) -> None:
    """Negative control: on a clock that stands still, no turn ends, and all notices leave in one piece."""

    async def test() -> None:
        groups = Groups(20, 5, share)
        groups.notices.group_changed(groups.names)
        assert groups.sent == at_once
        await iterations(12)
        assert [member.groups for member in groups.members] == [groups.names] * 5

    asyncio.run(test())


def test_a_notice_is_encoded_once_for_all_members_of_a_group() -> None:
    async def test() -> None:
        groups = Groups(1, 5)
        groups.notices.group_changed(groups.names)
        assert len({id(frame) for member in groups.members for frame in member.frames}) == 1

    asyncio.run(test())


def test_a_change_between_the_turns_is_notified_and_a_group_that_waits_is_not_repeated() -> None:
    async def test() -> None:
        groups = Groups(20, 5)
        first, last = groups.names[0], groups.names[-1]
        groups.notices.group_changed(groups.names)
        groups.notices.group_changed([first, last])
        await iterations(14)
        assert [member.groups for member in groups.members] == [[*groups.names, first]] * 5
        groups.notices.group_changed([last])
        assert groups.members[0].groups[-1] == last

    asyncio.run(test())
