"""Everything the handlers share: the machines, the log, and the few shells they speak to.

The machines are touched on the event loop only, so they need no locks.
"""

from dataclasses import dataclass, field

from lanemq.broker.config import BrokerOptions
from lanemq.broker.notices import Notices
from lanemq.broker.recording import Recording
from lanemq.broker.storage.group_commit import GroupCommit
from lanemq.broker.storage.log_thread import LogThread
from lanemq.broker.storage.parking import Parking
from lanemq.broker.storage.topic_keeper import TopicKeeper
from lanemq.clock import Clock
from lanemq.core.brokering.dedup import ProducerTable
from lanemq.core.brokering.delay import DelayQueueCursors
from lanemq.core.brokering.group_offsets import GroupOffsets
from lanemq.core.brokering.lock_table import LockTable
from lanemq.core.brokering.long_poll import LongPolls
from lanemq.core.brokering.membership import Membership
from lanemq.log.state import State
from lanemq.log.store import Store
from lanemq.net.address import Address
from lanemq.wire.route_bodies import SubscriptionGroupConfig


@dataclass(slots=True)
class Parts:
    """Made once by `app`; handlers take from it what they need."""

    options: BrokerOptions
    clock: Clock
    store: Store
    state: State
    thread: LogThread
    group_commit: GroupCommit
    notices: Notices
    advertised: Address
    topics: TopicKeeper
    members: Membership
    locks: LockTable
    offsets: GroupOffsets
    producers: ProducerTable
    polls: LongPolls[int]
    delays: DelayQueueCursors
    recording: Recording
    parking: Parking
    groups: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    """Settings of groups that were ever configured; every other group has RocketMQ's defaults."""
