"""The names of everything that LaneMQ adds to RocketMQ's protocol.

An addition is an extra ext field or an extra JSON attribute, never a new meaning of an existing one, so a stock client
or broker on the other side ignores it and works as before. `headers` and the bodies use the same names in Python's
spelling (`lane_epoch`); a test compares them.
"""

from typing import Final

LANE_CLIENT: Final = "laneClient"
"""Client id of the sender, on requests whose RocketMQ form does not say who asks (pull, offset update)."""
LANE_EPOCH: Final = "laneEpoch"
"""Epoch of the lease under which the sender acts; the broker refuses a stale one."""
LANE_LEASE_MILLIS: Final = "laneLeaseMillis"
"""How long a lease is asked for (LOCK_BATCH_MQ)."""
LANE_KEEP_ALIVE_MILLIS: Final = "laneKeepAliveMillis"
"""How long the sender starts turns after this request, if it is granted (LOCK_BATCH_MQ)."""
LANE_KEEP_ALIVE: Final = "laneKeepAlive"
"""In the answer to a lock request: the broker waits for the sender's keep-alive timeout, and the grant has this
serial. In a lock request that names no queues: a keep-alive, which moves the deadline of everything granted under the
serial; with serial 0, from a member that owns no queue, it shows only that the member is alive. In its answer: the
deadline was moved; without it, leases must be renewed."""
LANE_RESETS: Final = "laneResets"
"""In a lock request: the answer should say in which queues a reset waits for the owner. A member that pulls elsewhere
learns of it in this way."""
LANE_EXPIRY_MILLIS: Final = "laneExpiryMillis"
"""In a heartbeat: after how long without a heartbeat, keep-alive or lock request the broker removes the sender from its
groups. A sender without it is removed after RocketMQ's two minutes."""
LANE_NOT_MEMBER: Final = "laneNotMember"
"""In the answer to a keep-alive or a lock request with a lease: the group does not have the sender as a member on this
connection, and the sender must send a heartbeat."""
LANE_TERM: Final = "laneTerm"
"""The term of the coordinator that leads: in its answers to lock requests and keep-alives, and in an answer that says
that another one leads. In a lock request, a keep-alive or a heartbeat: the highest term that the sender has seen."""
LANE_LEADER: Final = "laneLeader"
"""In the answer of a coordinator that does not lead: the address of the one that does."""
LANE_HIGHEST_EPOCH: Final = "laneHighestEpoch"
"""In a heartbeat to a coordinator: the highest epoch that the sender was ever granted. All later ones are above."""
LANE_TOPIC: Final = "laneTopic"
"""In a request for the members of a group: only those that subscribe to this topic."""
LANE_ORDERED: Final = "laneOrdered"
"""In a heartbeat's subscription: whether the member consumes the topic in order."""
LANE_PASS_ON: Final = "lanePassOn"
"""In CONSUMER_SEND_MSG_BACK: the sender has no handler for the message's topic. The broker does not count an attempt,
and stores the message in the next queue of the retry topic, which another member reads."""
LANE_MAX_BYTES: Final = "laneMaxBytes"
"""Maximum bytes of messages in the answer to a pull."""
LANE_PARTS: Final = "laneParts"
"""In a pull under a lease: while it is held, the broker may answer it in parts, which all have its opaque. Together
they have no more messages than the pull asks for, and end with the one that reaches its bytes. The last part comes at
the deadline at the latest."""
LANE_MORE: Final = "laneMore"
"""In a part of the answer to a pull: another one follows. Its messages begin at the `nextBeginOffset` of this one."""
LANE_DUPLICATE: Final = "laneDuplicate"
"""In a send response: the messages had been stored before."""
LANE_SKIPPED: Final = "laneSkipped"
LANE_KNOWN_OFFSET: Final = "laneKnownOffset"
"""In a send response: how many messages at the start of the batch had been stored before, and the offset of the first.
"""
LANE_STORED: Final = "laneStored"
"""In a send response: `durable` or `relaxed`."""
LANE_EXPECTED: Final = "laneExpected"
"""In a refused send: the sequence that the broker expects; 0 means that it does not know the producer."""
LANE_REPORT: Final = "laneReport"
"""In an offset update: the sender is no member of the group and reports how far it has read, as a Spark query does. The
broker refuses it for a group that consumers use, and consumers of a group that is reported to."""
LANE_IGNORED: Final = "laneIgnored"
"""In the answer to an offset update with an epoch: why a valid update changed nothing."""
REPORTED: Final = "lane.reported"
"""The attribute in a group's settings that tells a group whose offsets are reported, as by a Spark query, from one that
consumers use."""
GLOBAL_ORDER: Final = "+lane.order=global"
"""In the attributes of a request to create a topic: it is ordered as a whole, not by key."""
FIFO_TOPIC: Final = "+message.type=FIFO"
"""The same of RocketMQ 5's tools: messages of a group are ordered."""
LANE_FEATURES: Final = "laneFeatures"
"""Feature bits of a broker in a route: which of LaneMQ's additions it understands."""
LANE_CREATED: Final = "laneCreated"
"""In the answer to GET_TOPIC_STATS_INFO: when the topic was created, in milliseconds since 1970. Another value means
that the topic was deleted and created again, so its offsets stand for other messages. In a pull: the offset is one of
the topic that was created then. A later topic of that name is answered as one that does not exist."""
LANE_HELD: Final = "laneHeld"
LANE_STATE: Final = "laneState"
"""In GET_CONSUMER_RUNNING_INFO: the member adds the lanes that it holds, or what the lane in the body is doing, as the
property of this name. An Apache broker passes no other question on to a member."""
LANE_CLIENTS: Final = "laneClients"
"""The property under which a member that is a front adds its clients to the answer of GET_CONSUMER_RUNNING_INFO."""
FRONT_SUFFIX: Final = "-grpc"
"""Ends the client ids of members that are fronts."""
LANE_FINISHED: Final = "laneFinished"
"""In a lock request: the answer should carry the finished ranges of newly granted queues. A sender without it keeps no
finished ranges, and the broker forgets those of a queue that it grants to this sender. In the body of an offset update:
the ranges finished above the offset. In a query of the offset: the answer should carry them in its body."""
LANE_LEASES: Final = "laneLeases"
LANE_REFUSED: Final = "laneRefused"
"""In the body of the lock response: the granted leases with their epochs, and who holds the refused queues."""
LANE_PARKED: Final = "laneParked"
"""In the answer to LANE_PARK_NEXT: `held`, `redriving`, `parked`, or empty if the lane is no longer parked."""

FEATURE_LEASES: Final = 1
"""The broker gives leases with epochs and checks them on pull and offset update."""
FEATURE_STAMPS: Final = 2
"""The broker checks producer stamps: it drops repeats and refuses gaps."""
FEATURE_PARKING: Final = 4
"""The broker keeps parked lanes (requests 4202 to 4207)."""
