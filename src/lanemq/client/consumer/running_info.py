"""What a consumer is doing, in RocketMQ's form (request 307), for its tools and the dashboard."""

from lanemq.client.consumer.assigned_queue import Holding
from lanemq.client.consumer.member import Member
from lanemq.wire.stats_bodies import ConsumerRunningInfo, ConsumeStatus, ProcessQueueInfo

MEBIBYTE = 1024 * 1024


def running_info(member: Member) -> ConsumerRunningInfo:
    """A snapshot of this moment."""
    options = member.options
    ordered = all(station.plan.ordered for station in member.stations.values())
    return ConsumerRunningInfo(
        properties={
            "PROP_NAMESERVER_ADDR": options.servers,
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": str(ordered).lower(),
            "PROP_THREADPOOL_CORE_SIZE": str(sum(each.plan.workers for each in member.stations.values())),
        },
        subscription_set=list(member.heartbeat.described()),
        mq_table={holding.queue: _queue_info(holding, options.clock.now()) for holding in member.holdings},
        status_table={
            topic: ConsumeStatus(
                consume_failed_msgs=count.failed, consume_rt=count.turn_ms / count.runs if count.runs else 0.0
            )
            for topic, count in member.counts.total().items()
        },
    )


def _queue_info(holding: Holding, now: int) -> ProcessQueueInfo:
    view = holding.station.scheduler.snapshot().get(holding.queue)
    if view is None:
        return ProcessQueueInfo(droped=True)
    return ProcessQueueInfo(
        cached_msg_count=view.cached.count,
        cached_msg_min_offset=view.committable,
        cached_msg_max_offset=view.next_offset,
        cached_msg_size_in_mib=view.cached.bytes // MEBIBYTE,
        commit_offset=view.committable,
        locked=now < view.usable_until,
        try_unlock_times=holding.life.late,
        last_pull_timestamp=holding.last_pull,
    )
