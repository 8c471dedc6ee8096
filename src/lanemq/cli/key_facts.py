"""Everything that is known of a key: gathered from the log, the offsets, the locks, the parked lanes and its owner.

The rule guarded here: the answer comes within a tenth of a second. Only the key's own queue is looked at, and no
member is waited for longer than 50 ms.
"""

from dataclasses import dataclass, replace

from lanemq.cli.lag import progress_of
from lanemq.cli.lane_reason import GroupOfKey
from lanemq.cli.options import Failed
from lanemq.cli.reading import Reader
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.admin.views import GroupDescription, NoAnswer
from lanemq.client.message import Message
from lanemq.clock import SystemClock
from lanemq.core.sending.sharding import pick_queue
from lanemq.model.queue import MessageQueue
from lanemq.wire.lane_bodies import LaneStateAnswer


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """`hashed` is where the key belongs, `queue` where its newest message is."""

    key: str
    queue: MessageQueue
    hashed: MessageQueue
    messages: list[Message]
    groups: list[GroupOfKey]


def facts_of(key: str, topic: str | None, group: str | None, server: str) -> KeyFacts:
    """Of one group, or of every group that reads the topic."""
    topic = topic or _topic_of(key, server)
    with Reader(server, topic) as reader:
        hashed = pick_queue(key, reader.route.publish)
        messages = reader.find(key)
    queue = messages[-1].queue if messages else hashed
    with Admin(server) as admin:
        names = [group] if group else admin.groups()
        found = (_group_of_key(admin, name, server, queue, key, messages) for name in names)
        groups = _with_parked([each for each in found if each is not None], key, queue, server)
    if group and not groups:
        raise Failed(f"group {group!r} has no offset in queue {queue.queue_id} of {topic}; see lanemq group list")
    return KeyFacts(key, queue, hashed, messages, groups)


def _topic_of(key: str, server: str) -> str:
    with Admin(server) as admin:
        topics = [topic for topic in admin.topics() if admin.find_key(topic, key, limit=1)]
    if not topics:
        raise Failed(f"no topic has messages of key {key!r}; with --topic you see which queue they would go to")
    if len(topics) > 1:
        raise Failed(f"several topics have messages of key {key!r}: choose one with --topic ({', '.join(topics)})")
    return topics[0]


def _with_parked(groups: list[GroupOfKey], key: str, queue: MessageQueue, server: str) -> list[GroupOfKey]:
    with ParkedAdmin(server) as admin:
        lanes = {lane.group: lane for lane in admin.lanes(topic=queue.topic, key=key) if lane.queue == queue}
    return [replace(each, parked=lanes.get(each.group)) for each in groups]


def _group_of_key(
    admin: Admin, name: str, server: str, queue: MessageQueue, key: str, messages: list[Message]
) -> GroupOfKey | None:
    found = admin.describe_group(name)
    here = replace(found, queues=tuple(each for each in found.queues if each.queue == queue))
    leases = {lease.queue: lease for lease in admin.locks(name)}
    for progress in progress_of(here, leases, server, SystemClock().wall()):
        offsets = [message.queue_offset for message in messages if message.queue == queue]
        pending = tuple(offset for offset in offsets if offset >= progress.at.offset)
        known = GroupOfKey(name, len(found.members), progress, len(offsets) - len(pending), pending)
        return replace(known, lane=_from_its_owner(found, known, server, key)) if pending else known
    return None


def _from_its_owner(
    found: GroupDescription, known: GroupOfKey, server: str, key: str
) -> LaneStateAnswer | NoAnswer | None:
    owner, queue = known.progress.at.owner, known.progress.at.queue
    if owner is None:
        return None
    if owner not in {member.client_id for member in found.members}:
        return NoAnswer(f"its owner {owner} is not connected any more", silent=True)
    with Admin(server) as admin:
        return admin.lane_state(found.group, owner, queue, key)
