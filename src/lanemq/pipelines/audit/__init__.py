"""The checker as a Spark job, with the same rules as the plain checker.

No rule is written twice. A history is cut into shards, every shard is given in time order to the checker's own code,
and the findings of the shards are added up. That is exact because no rule looks further than its shard:

| rules and what they remember | scope |
|---|---|
| S1, S3, S4, S5, B6: what the log holds | one queue of one topic |
| B2, B3, B4, B5, D4, E1, E3, L1: lanes | one group on one queue |
| C1, C2, C3, C5, D1, D2, D3: owner and committed offset | one group on one queue |
| P1: effects | one key of one group on one queue |
| P2: effects | one group on one queue |
| what is unknown of members without a history | one group on one queue; its counts add up |
| whose clock the times are of | the run: decided from what is known of all files |
| queues that a group never touched | the topic: decided from the findings of all shards |
| what may be forgotten | all groups of one queue |
| S2, B1, B7: what was sent and has no queue yet | one message, and the messages of its key |
| whether the topic was ever sent to | the topic: one moment, given to every shard |

So a shard is a queue, with the sends that belong to it. A send names no queue: the messages of its key do, as soon as
one of them is acknowledged, delivered or found in the log (`routing`). Where that is ambiguous, because a key or a
message appears in two queues or a message under two keys, the whole topic is one shard: slower, but never wrong.

Order is (time, file, line), as in the plain checker, never the order of arrival.
"""
