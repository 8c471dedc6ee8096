"""The checker as a Spark job: the same judge, many benches.

No rule is written a second time. A history is cut into shards, every shard is fed in time order to the checker's own
code, and what the shards found adds up. That is exact because no rule looks further than its shard:

| what a rule remembers | looks at |
|---|---|
| A1, A3, A4, B6 and what the log holds | one queue of one topic |
| B2, B3, B4, B5, D4, E1, E3, L1: lanes | one group on one queue |
| C1, C2, C3, C5, D1, D2, D3: owner and committed offset | one group on one queue |
| P1, P2: effects | one key of one group on one queue |
| what may be forgotten | all groups of one queue |
| A2, B1, B7: what was sent and has no place yet | one message, and the messages of its key |
| whether anybody ever sent to the topic | the topic: one moment, told to every shard |

So a shard is a queue, plus the sends that belong there. A send names no queue: its key's messages do, as soon as one
of them is acknowledged, delivered or found in the log (`routing`). Where that is not plain, because a key or a message
appears in two queues or a message under two keys, the whole topic is one shard: slower, never wrong.

Order is (time, file, line), as in the plain checker, and never that of arrival.
"""
