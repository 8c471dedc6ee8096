"""Names of what LaneMQ adds to RocketMQ's protocol, in one place.

The rule guarded here: an addition is an extra ext field or an extra JSON member, never a new meaning of an
old one, so that a stock client or broker on the other side ignores it and works as before. `headers` and the
bodies spell them in Python's way (`lane_epoch`); a test keeps the two in step.
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
serial. In its answer: it did; without it, leases must be renewed."""
LANE_MAX_BYTES: Final = "laneMaxBytes"
"""Most bytes of messages in the answer to a pull."""
LANE_DUPLICATE: Final = "laneDuplicate"
"""In a send response: the messages were in the log already."""
LANE_SKIPPED: Final = "laneSkipped"
LANE_KNOWN_OFFSET: Final = "laneKnownOffset"
"""In a send response: so many messages at the begin of the batch were in the log already, the first one there."""
LANE_STORED: Final = "laneStored"
"""In a send response: `durable` or `relaxed`."""
LANE_EXPECTED: Final = "laneExpected"
"""In a refused send: the sequence that the broker misses; 0 means that it knows nothing of the producer."""
LANE_IGNORED: Final = "laneIgnored"
"""In the answer to an offset update that carries an epoch: why it changed nothing, though nothing is wrong with it."""
GLOBAL_ORDER: Final = "+lane.order=global"
"""In the attributes of a request to create a topic: it is ordered as a whole, not by key."""
LANE_FEATURES: Final = "laneFeatures"
"""Bits of a broker in a route: what it understands beyond RocketMQ."""
LANE_LEASES: Final = "laneLeases"
LANE_FINISHED: Final = "laneFinished"
"""In a lock request: whether the answer shall carry the finished ranges of newly granted queues. Without it the sender
keeps no finished ranges, and the broker forgets those of a queue that becomes its own. In the body of an offset update:
the ranges finished above the offset."""
LANE_REFUSED: Final = "laneRefused"
"""Members of the lock response: the granted leases with epochs, and who holds the refused queues."""
LANE_PARKED: Final = "laneParked"
"""In the answer to LANE_PARK_NEXT: `redriving`, `parked`, or nothing when the lane is an ordinary one again."""

FEATURE_LEASES: Final = 1
"""The broker gives leases with epochs and checks them on pull and offset update."""
FEATURE_STAMPS: Final = 2
"""The broker judges stamps: repeats are answered, gaps refused."""
FEATURE_PARKING: Final = 4
"""The broker keeps parked lanes (requests 4202 to 4207)."""
