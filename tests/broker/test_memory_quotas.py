"""What stays in memory because a client named it has a quota in bytes: one name may be large, and cost megabytes."""

import pytest
from tests.broker.raw_client import lock_body
from tests.broker.running import Gate, RunningBroker
from tests.broker.test_limits import limited, refusals

from lanemq.broker.charges import Charges
from lanemq.broker.handlers import pull
from lanemq.core.brokering.members.membership import Membership
from lanemq.core.brokering.queue_progress import OFFSET_BYTES
from lanemq.core.brokering.quotas import Quota, Quotas
from lanemq.model.java_hash import REMEMBERED_CHARS, java_string_hash, tag_code
from lanemq.wire.bodies import HeartbeatData, LaneProgress, ProducerData
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command

ADDRESS = "address 127.0.0.1"
TAGS = {"T": "||".join(f"t{number}" for number in range(30))}
"""A subscription that takes about 8,000 bytes."""


def test_subscriptions_have_a_quota_and_are_given_back_when_their_client_leaves(broker: RunningBroker) -> None:
    limited(broker, subscriptions=20_000)
    raw = broker.connect()
    assert [raw.heartbeat(f"c{number}", topics=TAGS).code for number in range(3)] == [0, 0, ResponseCode.SYSTEM_ERROR]
    assert raw.heartbeat("c0", topics=TAGS).code == 0, "the same again takes nothing more"
    assert "may have 20000 bytes of subscriptions" in (raw.heartbeat("c2", topics=TAGS).remark or "")
    assert refusals(raw, "quota") == 2
    raw.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c0", "consumerGroup": "g"})
    assert raw.heartbeat("c2", topics=TAGS).code == 0


def test_a_client_with_a_second_connection_pays_for_what_the_first_subscribed(broker: RunningBroker) -> None:
    """The subscriptions of a client stay until its last connection has ended."""
    members, first, second = broker.broker.running.context.members, broker.connect(), broker.connect()
    second.heartbeat("c", topics={"U": "*"})
    first.heartbeat("c", topics=TAGS)
    first.close()
    while len(broker.broker.running.server.peers) > 1:
        pass
    assert broker.call(lambda: members.bytes_with(ADDRESS, "other", {})) > 8_000


def test_without_the_quota_every_heartbeat_brings_more_subscriptions(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test before."""
    monkeypatch.setattr(Membership, "bytes_with", lambda *_: 0)
    limited(broker, subscriptions=20_000)
    raw = broker.connect()
    assert {raw.heartbeat(f"c{number}", topics=TAGS).code for number in range(9)} == {0}


def test_a_producer_group_takes_a_seat_too(broker: RunningBroker) -> None:
    context, raw = limited(broker, seats_of_connection=3), broker.connect()

    def produce(*groups: str) -> Command:
        named = [ProducerData(group_name=group) for group in groups]
        return raw.ask(RequestCode.HEART_BEAT, {}, HeartbeatData(client_id="c", producer_data_set=named).encode())

    assert produce("p1", "p2").code == 0
    assert produce("p1", "p2").code == 0
    assert raw.heartbeat("c").code == 0
    assert "may have 3 seats in groups" in (produce("p3").remark or "")
    assert context.charges.quotas.charged(Quota.SEATS, ADDRESS) == 3


def test_a_held_pull_with_many_tags_or_long_fields_counts_as_several(broker: RunningBroker) -> None:
    context, raw = limited(broker, held_pulls_of_connection=10), broker.connect()
    raw.create("T")
    many = "||".join(f"t{number}" for number in range(100))
    held = raw.post_pull("T", 0, hold=25_000, tags=many)
    raw.bounds("T")
    assert context.charges.quotas.charged(Quota.HELD_PULLS, ADDRESS) == 6
    assert raw.pull("T", 0, hold=25_000, laneClient="x" * 10_000).code == ResponseCode.SYSTEM_BUSY
    raw.send("T", b"x", queue=0, properties={"TAGS": "t99"})
    assert raw.answer(held).code == 0
    assert context.charges.quotas.charged(Quota.HELD_PULLS, ADDRESS) == 0
    raw.post_pull("T", 1, hold=25_000, tags=many)
    raw.bounds("T")
    raw.close()
    while broker.call(lambda: len(context.polls)):
        pass
    assert context.charges.quotas.charged(Quota.HELD_PULLS, ADDRESS) == 0


def test_without_their_weight_long_pulls_count_as_short_ones(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test before."""
    monkeypatch.setattr(pull, "TAGS_OF_ONE", 1_000_000)
    with pytest.raises(AssertionError, match="1 == 6"):
        test_a_held_pull_with_many_tags_or_long_fields_counts_as_several(broker)


def test_new_offsets_have_a_quota_and_known_ones_go_on(broker: RunningBroker) -> None:
    context, raw = limited(broker, offsets=3 * OFFSET_BYTES), broker.connect()
    raw.create("T")
    raw.create("U")
    assert [raw.commit(0, queue=queue).code for queue in range(2)] == [0, 0]
    assert raw.pull("U", 0, group="h", commit=0).code == ResponseCode.PULL_NOT_FOUND
    reset = {"topic": "U", "group": "i", "timestamp": "0", "isForce": "true"}
    refused = (
        raw.commit(0, queue=2),
        raw.pull("U", 0, queue=1, group="h", commit=0),
        raw.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset),
    )
    assert [reply.code for reply in refused] == [ResponseCode.SYSTEM_ERROR] * 3
    assert "bytes of offsets and finished ranges" in (refused[0].remark or "")
    assert raw.commit(1, queue=0).code == 0
    assert raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "U"}).code == 0
    assert raw.commit(0, queue=2).code == 0, "the offset in the deleted topic is given back"
    raw.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "true"})
    assert context.charges.quotas.charged(Quota.OFFSETS, ADDRESS) == 0


def test_finished_ranges_beyond_the_quota_are_forgotten_and_the_offset_is_not(broker: RunningBroker) -> None:
    limited(broker, offsets=OFFSET_BYTES + 100)
    raw = broker.connect()
    raw.create("T", 1)
    raw.send_batch("T", [(b"x", {})] * 200)
    (lease,) = raw.lane_lock("c").lane_leases

    def commit(offset: int, ranges: int) -> int:
        ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
        body = LaneProgress(lane_finished=",".join(["1"] * 2 * ranges)).encode()
        owned = {"laneClient": "c", "laneEpoch": str(lease.epoch)}
        return raw.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext | owned, body).code

    def finished() -> str:
        return broker.progress("g", "T").finished

    assert (commit(0, 10), len(finished())) == (0, 39)
    assert (commit(1, 90), finished()) == (0, ""), "their messages may be delivered again"
    assert raw.committed() == 1
    assert (commit(2, 10), len(finished())) == (0, 39)


def test_without_the_quota_finished_ranges_of_any_size_stay(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the two tests before."""
    monkeypatch.setattr(Charges, "grow", lambda *_: None)
    with pytest.raises(AssertionError, match="delivered again"):
        test_finished_ranges_beyond_the_quota_are_forgotten_and_the_offset_is_not(broker)
    with pytest.raises(AssertionError, match=r"\[0, 17, 0\]|\[0, 19, 0\]"):
        test_new_offsets_have_a_quota_and_known_ones_go_on(broker)


def test_queues_of_new_topics_have_a_quota_and_are_given_back(broker: RunningBroker) -> None:
    context, raw = limited(broker, queues=60), broker.connect()
    assert raw.create("T", 24).code == 0
    assert raw.create("T", 26).code == 0, "two more"
    assert raw.send("U").code == 0, "four, by its first send, which count as twenty"
    assert context.charges.quotas.charged(Quota.QUEUES, ADDRESS) == 46
    for reply in (raw.create("V", 5), raw.create("T", 41), raw.send("W")):
        assert "may have 60 queues of topics created" in (reply.remark or "")
    assert context.charges.quotas.charged(Quota.QUEUES, ADDRESS) == 46
    assert raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    assert raw.create("V", 30, order="true").code == 0
    assert "order" in (raw.create("V", 35, order="true").remark or ""), "its queues cannot be changed"
    assert context.charges.quotas.charged(Quota.QUEUES, ADDRESS) == 50
    assert raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "V"}).code == 0
    assert raw.create("W", 40).code == 0


def test_the_locks_of_a_deleted_topic_are_given_back(broker: RunningBroker) -> None:
    """A group that outlives its topics would be refused one day, though it has hardly any locks."""
    limited(broker, leases=4)
    raw = broker.connect()
    for group in ("g", "h"):
        raw.create("T")
        assert len(raw.lock("c", queues=(0, 1, 2, 3), group=group).lock_ok_mq_set) == 4
        raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    raw.create("T")
    raw.lock("c", queues=(0, 1, 2, 3))
    raw.unlock("c", queues=(0, 1, 2, 3))
    raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    raw.create("T")
    assert len(raw.lock("c", queues=(0, 1, 2, 3)).lock_ok_mq_set) == 4, "also those that were released before"


def test_without_giving_back_a_group_that_outlives_its_topics_is_refused(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test before."""
    monkeypatch.setattr(Quotas, "lower", lambda *_: None)
    with pytest.raises(AssertionError, match="queue locks"):
        test_the_locks_of_a_deleted_topic_are_given_back(broker)


@pytest.mark.parametrize("kind", ["delete topic", "delete group", "reset"])
def test_deletions_and_resets_under_way_are_limited_by_connection(broker: RunningBroker, kind: str) -> None:
    """Each waits for a write of its own, so a flood of them would delay the rows of all others."""
    limited(broker, rows_of_connection=5)
    raw = broker.connect()
    for number in range(8):
        raw.create(f"T{number}", 1)
        raw.commit(0, topic=f"T{number}", group=f"g{number}")
    code, fields = {
        "delete topic": (RequestCode.DELETE_TOPIC_IN_BROKER, lambda n: {"topic": f"T{n}"}),
        "delete group": (RequestCode.DELETE_SUBSCRIPTIONGROUP, lambda n: {"groupName": f"g{n}"}),
        "reset": (
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            lambda n: {"topic": f"T{n}", "group": f"g{n}", "timestamp": "0", "isForce": "true"},
        ),
    }[kind]
    gate = Gate(broker)
    try:
        asked = [raw.post(code, fields(number)) for number in range(8)]
        assert [raw.answer(opaque).code for opaque in asked[5:]] == [ResponseCode.SYSTEM_BUSY] * 3
    finally:
        gate.open()
    assert [raw.answer(opaque).code for opaque in asked[:5]] == [0] * 5
    assert raw.ask(code, fields(7)).code == 0, "what was refused has changed nothing, and can be asked again"


@pytest.mark.parametrize("kind", ["delete", "reset"])
def test_many_groups_are_deleted_or_reset_in_few_transactions(broker: RunningBroker, kind: str) -> None:
    """With a write for each, a client that deletes a thousand groups would delay the locks of all others by seconds."""
    raw, state = broker.connect(), broker.broker.running.context.state
    raw.create("T", 1)
    groups = [f"g{number}" for number in range(100)]
    for group in groups:
        raw.commit(0, group=group)
    broker.settle()
    writes, transaction = list[object](), state.transaction

    def counted(sync: object) -> object:
        if not state._together:
            writes.append(sync)
        return transaction(sync)  # type: ignore[arg-type]

    state.transaction = counted  # type: ignore[method-assign,assignment]
    code, fields = {
        "delete": (RequestCode.DELETE_SUBSCRIPTIONGROUP, lambda group: {"groupName": group, "cleanOffset": "true"}),
        "reset": (
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            lambda group: {"topic": "T", "group": group, "timestamp": "0", "isForce": "true"},
        ),
    }[kind]
    asked = [raw.frame(code, fields(group)) for group in groups]
    raw.socket.sendall(b"".join(frame for _, frame in asked))
    assert [raw.answer(opaque).code for opaque, _ in asked] == [0] * 100
    assert 1 <= len(writes) < 50


def test_new_locks_under_way_are_limited_by_connection(broker: RunningBroker) -> None:
    context = limited(broker, rows_of_connection=5)
    raw = broker.connect()
    raw.create("T", 1)
    gate = Gate(broker)
    try:
        asked = [
            raw.post(RequestCode.LOCK_BATCH_MQ, {}, lock_body("c", "T", (0,), f"g{number}")) for number in range(8)
        ]
        assert [raw.answer(opaque).code for opaque in asked[5:]] == [ResponseCode.SYSTEM_BUSY] * 3
    finally:
        gate.open()
    assert [raw.answer(opaque).code for opaque in asked[:5]] == [0] * 5
    assert refusals(raw, "quota") == 3
    assert raw.lock("c", group="g7").lock_ok_mq_set
    assert not broker.call(lambda: context.charges.quotas._held[Quota.ROWS]), "all of it is given back"


def test_without_the_count_of_rows_every_deletion_is_taken(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test before."""
    monkeypatch.setattr(Charges, "take", lambda *_: None)
    limited(broker, rows_of_connection=5)
    raw = broker.connect()
    gate = Gate(broker)
    asked = [raw.post(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": f"g{number}"}) for number in range(8)]
    raw.bounds("T")
    gate.open()
    assert [raw.answer(opaque).code for opaque in asked] == [0] * 8


def test_a_pull_asks_for_a_limited_number_of_tags(broker: RunningBroker) -> None:
    """Hashing the tags of one header would hold the event loop for a tenth of a second."""
    raw = broker.connect()
    raw.create("T", 1)
    for expression in ("||".join(f"{number:x}" for number in range(1_001)), "x" * 32_768):
        assert "at most 1000 tags with 32767 characters" in (raw.pull("T", 0, tags=expression).remark or "")
    assert raw.pull("T", 0, tags="||".join(f"{number:x}" for number in range(1_000))).code == 19


def test_the_hash_of_a_long_tag_is_not_remembered() -> None:
    """And the control: a broker that remembered all of them would keep as much as the clients invent."""
    java_string_hash.cache_clear()
    before = java_string_hash.cache_info().currsize
    assert tag_code("x" * (REMEMBERED_CHARS + 1)) == java_string_hash.__wrapped__("x" * (REMEMBERED_CHARS + 1))
    assert java_string_hash.cache_info().currsize == before
    java_string_hash(f"{before}" + "x" * REMEMBERED_CHARS)
    assert java_string_hash.cache_info().currsize > before
