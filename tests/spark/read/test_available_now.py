"""Available-now in a group (as `--once` of a pipeline): the run reads all of its share, or fails."""

import pytest
from tests.spark.group.test_membership import Member, membership_of, owners
from tests.spark.spark_driver import Query, send, until, values

from lanemq.model.errors import LeaseLost
from lanemq.testing.embedded import EmbeddedBroker

pytestmark = pytest.mark.slow


def test_a_single_member_reads_everything(broker: EmbeddedBroker, topic: str, group: str) -> None:
    send(broker.address, topic, range(30))
    with Query(servers=broker.address, topic=topic, group=group, startingOffsets="earliest") as query:
        query.reader.prepareForTriggerAvailableNow()
        send(broker.address, topic, range(30, 40))
        assert values(query.everything()) == list(range(30))


def test_it_leaves_the_share_of_a_consumer_unread(broker: EmbeddedBroker, topic: str, group: str) -> None:
    with Member(broker.address, group, topic) as member:
        until(lambda: len(owners(broker.address, group)) == 2)
        with Query(servers=broker.address, topic=topic, group=group) as query:
            query.reader.prepareForTriggerAvailableNow()
            assert len(membership_of(query).usable()) == 1
        assert member.handled == []


def test_it_fails_if_a_part_of_its_share_stays_unread(broker: EmbeddedBroker, topic: str, group: str) -> None:
    """Another member's batch takes longer than this run waits."""
    send(broker.address, topic, range(30))
    options = {"servers": broker.address, "topic": topic, "group": group, "brokerWait": "1s"}
    with Query(**options) as busy:
        until(lambda: busy.plan() and len(owners(broker.address, group)) == 2)
        busy.partitions()
        with (
            Query(**options) as query,
            pytest.raises(LeaseLost, match=f"{topic}.*not owned by this query.*brokerWait"),
        ):
            query.reader.prepareForTriggerAvailableNow()
