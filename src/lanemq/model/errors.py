"""Every error that LaneMQ raises.

LaneError
├── UsageError             the caller's mistake
│   ├── InvalidOption        an option out of range, or two that contradict each other
│   ├── InvalidName          a topic or group name that is not allowed
│   ├── MissingKey           a send without a key to an ordered topic
│   ├── MessageTooLarge      body or properties over the limit
│   └── Closed               used after close(), or started twice
├── ProtocolError
│   ├── LocalProtocolError   this side was about to send an invalid message
│   └── RemoteProtocolError  the peer sent an invalid message; the connection is closed
├── TransportError         retriable: it is unknown whether the request arrived
│   ├── ConnectFailed
│   │   ├── NotLeader        the coordinator at the address does not lead
│   │   └── TlsFailed        the TLS handshake failed, or a certificate was refused
│   ├── ConnectionLost
│   └── RequestTimedOut
├── BrokerRefused          the broker refused the request; has code and remark
│   ├── TopicNotFound · GroupNotFound · OffsetNotFound · NotAllowed · BrokerBusy · BrokerReadOnly · MessageRefused
├── OrderError             never retried blindly
│   ├── LogReplaced          a queue has other messages at offsets that the group has finished
│   ├── SequenceGap          the broker misses an earlier message of this producer
│   ├── ProducerFenced       a newer producer with this id exists
│   ├── LaneFrozen           an earlier message of the lane failed; nothing may pass it
│   ├── Dropped              given up by drop() before it was sent
│   ├── LeaseLost            the queue belongs to another member now
│   ├── GroupConflict        another member consumes the topic with another order, or other tags
│   ├── SinkFenced           a newer run of this pipeline writes to the sink now
│   └── EffectRefused        the database cannot tell whether the message was applied
├── CodecError             a value that cannot be encoded or decoded; says where it is
│   └── Undecodable          a message's body; trying again does not help
└── StorageError
    ├── CorruptRecord · DiskFull · NoDescriptors · StillRebuilding · WriteFailed · LogInUse
    ├── CheckpointInUse      another run of the pipeline works on this checkpoint
    └── StateLost            a pipeline's state does not fit its checkpoint

Retry loops look at `error.retriable`, never at a list of codes.
"""

from typing import ClassVar, Self


class LaneError(Exception):
    """The root; catch it to catch everything LaneMQ raises."""

    retriable: ClassVar[bool] = False


class UsageError(LaneError):
    """The caller's mistake; the same call will fail again."""


class InvalidOption(UsageError, ValueError):
    """An option out of range, or options that contradict each other."""


class InvalidName(UsageError, ValueError):
    """A topic or group name that is not allowed."""

    def __init__(self, kind: str, name: str, limit: int) -> None:
        self.kind = kind
        self.name = name
        super().__init__(
            f"{kind} name {name[:140]!r} is not allowed: use 1 to {limit} of the characters A-Z a-z 0-9 _ - % |"
        )


class MissingKey(UsageError, ValueError):
    """A send without a key to an ordered topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"topic {topic!r} is ordered: pass key=... (messages with the same key stay in line), "
            f"or send to a topic created without --ordered"
        )


class MessageTooLarge(UsageError, ValueError):
    """Body or properties over the limit."""


class Closed(UsageError):
    """Used after close(), or started twice."""

    @classmethod
    def started_before(cls, kind: str) -> Self:
        """The error for a second start of a consumer or an app."""
        return cls(f"this {kind} was started before: make a new one")


class ProtocolError(LaneError):
    """Bytes that are not RocketMQ's protocol."""


class LocalProtocolError(ProtocolError):
    """This side was about to send an invalid message."""


class RemoteProtocolError(ProtocolError):
    """The peer sent an invalid message; the connection is closed."""


class TransportError(LaneError):
    """It is unknown whether the request arrived; with the same stamp it can safely be sent again."""

    retriable = True


class ConnectFailed(TransportError):
    """No connection to the address."""


class NotLeader(ConnectFailed):
    """The coordinator at the address does not lead: it has not carried out the request."""


class TlsFailed(ConnectFailed):
    """A peer answered, but the TLS handshake failed.

    Retriable like any failed connection: renewing the broker's certificate ends the problem, and giving up would freeze
    keys that only had to wait for that.
    """


class ConnectionLost(TransportError):
    """The connection ended before the answer came."""


class RequestTimedOut(TransportError):
    """No answer in time."""


class BrokerRefused(LaneError):
    """The broker refused the request."""

    stale_route: ClassVar[bool] = False

    def __init__(self, code: int, remark: str) -> None:
        self.code = code
        self.remark = remark
        super().__init__(f"the broker refused ({code}): {remark or 'no reason given'}")


class BrokerBusy(BrokerRefused):
    """Overloaded; the same request may succeed later."""

    retriable = True


class BrokerReadOnly(BrokerRefused):
    """The broker cannot write (disk full or failing); reads continue.

    A send that fails with it may be stored or not: the disk may have failed during the write or during a repeat.
    """


class NotAllowed(BrokerRefused):
    """No permission for this topic, group or broker."""


class TopicNotFound(BrokerRefused):
    """The topic does not exist and is not created automatically."""

    stale_route = True


class GroupNotFound(BrokerRefused):
    """The group does not exist, or no member of it is online."""


class OffsetNotFound(BrokerRefused):
    """The group has no offset for this queue, or no message matches the query."""


class MessageRefused(BrokerRefused):
    """The broker refuses the message: it is too large or malformed."""


class OrderError(LaneError):
    """Going on would break the order of a key."""


class LogReplaced(OrderError):
    """A queue has other messages at offsets that the group has finished."""


class SequenceGap(OrderError):
    """The broker misses an earlier message of this producer."""


class ProducerFenced(OrderError):
    """A newer producer with this id exists; this one must stop."""


class LaneFrozen(OrderError):
    """An earlier message of the lane failed; nothing may pass it."""


class Dropped(OrderError):
    """Given up by `drop` before it was sent; it is not stored."""


class LeaseLost(OrderError):
    """The queue belongs to another member now."""


class GroupConflict(OrderError):
    """Another member of the group consumes concurrently what this one would consume in order, or the reverse; or it
    reads other tags of a topic, and neither of them reads all tags of the other. Also a query that reports its offsets
    to a group that consumers use, or the reverse."""


class SinkFenced(OrderError):
    """A newer run of this pipeline writes to the sink; this one must stop."""


class EffectRefused(OrderError):
    """What the database knows of a lane contradicts the message: it was neither certainly applied nor certainly not."""


class CodecError(LaneError):
    """A value that cannot be encoded or decoded."""


class Undecodable(CodecError):
    """The body of a message is not what its handler wants; the same bytes will fail again."""


class StorageError(LaneError):
    """A problem with the disk or with the data on it."""


class CorruptRecord(StorageError):
    """A record whose checksum does not match its bytes."""

    def __init__(self, position: int, reason: str) -> None:
        self.position = position
        self.reason = reason
        super().__init__(f"record at log position {position} is damaged: {reason}")


class DiskFull(StorageError):
    """No space left; nothing was stored, and writing continues when there is space again."""


class NoDescriptors(StorageError):
    """The process or the system has no file descriptor left; nothing was stored, and the next attempt may succeed."""


class StillRebuilding(StorageError):
    """The index of an older message is being rebuilt after a start; ask again in a few seconds."""

    def __init__(self, topic: str, queue_id: int, offset: int) -> None:
        super().__init__(
            f"the index of queue {queue_id} of topic {topic!r} was lost and is not yet rebuilt up to offset {offset}: "
            f"ask again in a few seconds"
        )


class WriteFailed(StorageError):
    """A write or fdatasync failed; what was not acknowledged may be lost, and nothing more is written."""


class LogInUse(StorageError):
    """Another broker uses this data folder."""


class CheckpointInUse(StorageError):
    """Another run of the pipeline works on this checkpoint; two would apply events twice."""


class StateLost(StorageError):
    """The state that a batch starts from is missing or belongs to another checkpoint."""
