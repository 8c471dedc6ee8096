"""One client cannot take what the others need: names, locks, topics, leases of others."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, lock_body
from tests.broker.running import ManualClock, RunningBroker
from tests.load.abuses import heartbeat_of

from lanemq.broker.body_limits import SMALL_BODY
from lanemq.broker.charges import Charges
from lanemq.broker.context import BrokerContext
from lanemq.broker.handlers.locks import LockHandler
from lanemq.core.brokering.quotas import Quota, Quotas
from lanemq.net.serving import descriptors
from lanemq.wire.bodies import ConsumerData, HeartbeatData, SubscriptionData
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_bodies import NextBody, ParkAnswer, ParkBody
from lanemq.wire.record import decode_offset_id


def limited(running: RunningBroker, **limits: int) -> BrokerContext:
    """A broker with these limits of a party, or of a connection if their name ends so."""
    context, suffix = running.broker.running.context, "_of_connection"
    of_connection = {Quota[name.removesuffix(suffix).upper()]: n for name, n in limits.items() if name.endswith(suffix)}
    of_party = {Quota[name.upper()]: n for name, n in limits.items() if not name.endswith(suffix)}
    context.charges.quotas = Quotas(of_party, of_connection)
    return context


def refusals(raw: RawClient, reason: str) -> int:
    return int(raw.runtime()[f"laneRefused_{reason}"])


def test_an_address_invents_no_more_groups_than_its_quota_by_any_request(broker: RunningBroker) -> None:
    limited(broker, groups=6)
    raw = broker.connect()
    raw.create("T")
    stored = raw.send("T")

    def send_back(group: str) -> Command:
        position = str(decode_offset_id(stored.ext["msgId"]).position)
        return raw.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": position, "group": group, "delayLevel": "1"})

    def reset(group: str) -> Command:
        ext = {"topic": "T", "group": group, "timestamp": "0", "isForce": "true"}
        return raw.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)

    inventions: list[Callable[[str], Command]] = [
        lambda group: raw.heartbeat("c", group),
        lambda group: raw.commit(0, group=group),
        lambda group: raw.ask(RequestCode.LOCK_BATCH_MQ, {}, lock_body("c", "T", (0,), group)),
        lambda group: raw.pull("T", 0, group=group, commit=0),
        send_back,
        reset,
    ]
    assert [invent(f"g{number}").code for number, invent in enumerate(inventions)] == [0] * 6
    assert raw.pull("T", 0, group="g0").code == 0, "a known group is not charged again"
    replies = [
        invent(f"x{number}") for number, invent in enumerate((*inventions, lambda group: raw.pull("T", 0, group=group)))
    ]
    assert [reply.code for reply in replies] == [ResponseCode.SYSTEM_ERROR] * 7
    assert "may have 6 groups" in (replies[0].remark or "")
    assert refusals(raw, "quota") == 7
    assert raw.commit(1, group="g2").code == 0, "known groups continue"
    topics = raw.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body
    assert b"%RETRY%g0" in topics
    assert b"%RETRY%x" not in topics


def test_without_the_quota_every_invented_group_is_kept(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test before."""
    monkeypatch.setattr(Charges, "use_groups", lambda *_: None)
    limited(broker, groups=3)
    raw = broker.connect()
    raw.create("T")
    assert [raw.heartbeat("c", f"g{n}").code for n in range(9)] == [0] * 9
    assert [raw.pull("T", 0, group=f"h{n}", commit=0).code for n in range(9)] == [ResponseCode.PULL_NOT_FOUND] * 9
    assert raw.committed(group="h8") == 0


def test_the_figures_of_a_group_that_only_pulls_go_when_it_has_stopped(start: Start) -> None:
    running = start(clock=ManualClock())
    traffic = limited(running).traffic
    raw = running.connect()
    raw.create("T")
    raw.send("T")
    raw.pull("T", 0, group="stops")
    for _ in range(5):
        raw.pull("T", 0, group="goes-on")
        running.advance(300_000)
        running.advance(1_000)
    assert [group for group, *_ in traffic.groups()] == ["goes-on"]
    assert traffic.got_of("goes-on", "T")[0].total == 5


def test_a_refused_heartbeat_is_charged_nothing(broker: RunningBroker) -> None:
    context = limited(broker, groups=3, seats=100)
    ordered, raw = broker.connect(), broker.connect()
    ordered.ask(RequestCode.HEART_BEAT, {}, kind_of_heartbeat("first", ["a"], ordered=True))
    conflicting = raw.ask(RequestCode.HEART_BEAT, {}, kind_of_heartbeat("second", ["a", "b"], ordered=False))
    assert conflicting.code == ResponseCode.GROUP_CONFLICT
    many = raw.ask(RequestCode.HEART_BEAT, {}, kind_of_heartbeat("second", ["b", "c", "d"], ordered=True))
    assert many.code == ResponseCode.SYSTEM_ERROR
    address = "address 127.0.0.1"
    assert (
        context.charges.quotas.charged(Quota.SEATS, address),
        context.charges.quotas.charged(Quota.GROUPS, address),
    ) == (1, 1)
    assert raw.ask(RequestCode.HEART_BEAT, {}, kind_of_heartbeat("second", ["b", "c"], ordered=True)).code == 0


def kind_of_heartbeat(client: str, groups: list[str], *, ordered: bool) -> bytes:
    """A heartbeat of a LaneMQ client that says how it consumes topic T."""
    subscriptions = [SubscriptionData(topic="T", lane_ordered=ordered)]
    data = [ConsumerData(group_name=group, subscription_data_set=subscriptions) for group in groups]
    return HeartbeatData(client_id=client, consumer_data_set=data).encode()


def test_invented_groups_are_forgotten_and_groups_with_offsets_are_not(start: Start) -> None:
    running = start(clock=ManualClock())
    context = limited(running, groups=3)
    raw = running.connect()
    raw.create("T")
    raw.commit(1, group="kept")
    for name in ("x", "y"):
        raw.heartbeat("c", name)
    raw.close()
    running.run_for(10_000)
    raw = running.connect()
    assert raw.heartbeat("c", "z").code == ResponseCode.SYSTEM_ERROR
    running.advance(600_000)
    running.advance(2_000)
    assert raw.heartbeat("c", "z").code == 0
    assert raw.committed(group="kept") == 1
    topics = raw.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body
    assert b"%RETRY%x" not in topics
    assert b"%RETRY%z" in topics
    running.settle()  # the log thread saves the row after the reply
    assert sorted(context.state.topics()) == ["%RETRY%z", "T"]


def test_a_group_with_offsets_expires_after_thirty_days_and_its_epochs_go_on(start: Start) -> None:
    running = start(clock=ManualClock())
    raw = running.connect()
    raw.create("T")
    raw.commit(1)
    (lease,) = raw.lane_lock("c").lane_leases
    for days in (29, 2):
        running.advance(days * 24 * 3_600_000)
        running.advance(2_000)
        assert (running.connect().committed() is None) is (days == 2)
    raw = running.connect()
    assert running.broker.running.context.state.leases() == []
    (again,) = raw.lane_lock("d").lane_leases
    assert again.epoch > lease.epoch


def test_topics_and_locks_have_quotas(broker: RunningBroker) -> None:
    limited(broker, queues=40, leases=5)
    raw = broker.connect()
    assert raw.create("T").code == 0
    assert raw.send("U").code == 0
    for reply in (raw.create("V"), raw.send("W")):
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert "40 queues of topics created" in (reply.remark or "")
    assert raw.create("T").code == 0, "it exists"
    assert len(raw.lock("c", queues=(0, 1, 2, 3)).lock_ok_mq_set) == 4
    assert len(raw.lock("c", queues=(0, 1, 2, 3)).lock_ok_mq_set) == 4
    body = lock_body("c", "T", (0, 1), "other")
    assert "queue locks" in (raw.ask(RequestCode.LOCK_BATCH_MQ, {}, body).remark or "")
    assert raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "U"}).code == 0
    assert raw.create("V").code == 0


def test_a_heartbeat_names_a_limited_number_of_groups(broker: RunningBroker) -> None:
    raw = broker.connect()
    reply = raw.ask(RequestCode.HEART_BEAT, {}, heartbeat_of([f"g{n}" for n in range(1_001)]))
    assert "names 1001 groups and topics" in (reply.remark or "")
    assert broker.broker.running.context.members.groups() == ()


def test_a_flood_of_refused_heartbeats_is_one_line_in_the_log(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Each line would cost as much as the request itself."""
    limited(broker, groups=1)
    raw = broker.connect()
    assert [raw.heartbeat("c", f"g{number}").code == 0 for number in range(20)] == [True] + [False] * 19
    assert len([each for each in caplog.records if "a heartbeat of a" in each.message]) == 1


def test_a_body_beyond_its_limit_is_refused_before_it_is_read(broker: RunningBroker) -> None:
    raw = broker.connect()
    for code in (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.GET_MAX_OFFSET):
        reply = raw.ask(code, {"topic": "T", "queueId": "0"}, b" " * (1 << 20))
        assert "too large" in (reply.remark or "")
    assert refusals(raw, "body") == 3
    assert raw.send("T", b"x" * (SMALL_BODY + 1)).code == 0


def test_the_locks_of_a_connected_client_are_its_own(broker: RunningBroker) -> None:
    owner, stranger = broker.connect(), broker.connect()
    owner.create("T")
    owner.heartbeat("a")
    assert owner.lock("a").lock_ok_mq_set
    assert stranger.unlock("a").code == ResponseCode.NO_PERMISSION
    assert stranger.heartbeat("b").code == 0
    refused = stranger.ask(RequestCode.LOCK_BATCH_MQ, {}, lock_body("a", "T", (0,), "g"))
    assert refused.code == ResponseCode.NO_PERMISSION
    assert not stranger.lock("b").lock_ok_mq_set
    owner.close()
    returned = broker.connect()
    assert returned.lock("a").lock_ok_mq_set, "also before its heartbeat"


def test_without_that_check_a_stranger_releases_the_lock(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test before."""
    monkeypatch.setattr(LockHandler, "_refuse_other_client", lambda *_, **__: None)
    owner, stranger = broker.connect(), broker.connect()
    owner.create("T")
    owner.heartbeat("a")
    assert owner.lock("a").lock_ok_mq_set
    assert stranger.unlock("a").code == 0
    assert stranger.lock("b").lock_ok_mq_set


def test_pipelined_requests_that_are_saved_are_limited_by_connection(broker: RunningBroker) -> None:
    limited(broker, rows_of_connection=5)
    raw = broker.connect()
    names = [f"t{n}" for n in range(20)]
    more = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    asked = [raw.frame(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": name, **more}) for name in names]
    raw.socket.sendall(b"".join(frame for _, frame in asked))
    codes = [raw.answer(opaque).code for opaque, _ in asked]
    assert codes[:5] == [0] * 5
    assert set(codes[5:]) <= {0, ResponseCode.SYSTEM_BUSY}
    assert ResponseCode.SYSTEM_BUSY in codes
    assert raw.create("later").code == 0


def test_many_topics_are_saved_in_few_transactions(broker: RunningBroker) -> None:
    raw, context = broker.connect(), broker.broker.running.context
    together = context.state.together
    groups: list[int] = []

    def counted() -> object:
        groups.append(1)
        return together()

    context.state.together = counted  # type: ignore[method-assign,assignment]
    more = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    asked = [raw.frame(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": f"t{n}", **more}) for n in range(300)]
    raw.socket.sendall(b"".join(frame for _, frame in asked))
    assert [raw.answer(opaque).code for opaque, _ in asked] == [0] * 300
    assert 1 <= len(groups) < 60
    assert len(context.state.topics()) == 300
    broker.restart()
    assert b'"t299"' in broker.connect().ask(RequestCode.GET_ALL_TOPIC_CONFIG).body


def test_a_failing_row_fails_alone(broker: RunningBroker, folder: Path) -> None:
    """Of several rows in one transaction."""
    raw, context = broker.connect(), broker.broker.running.context
    raw.create("T")
    works, outcomes = context.state.save_group, []

    def save(name: str, settings: str) -> None:
        if name == "bad":
            raise ValueError("no such group")
        works(name, settings)

    def submit() -> None:
        context.row_thread.submit(lambda: None, lambda *_: None)
        for name in ("a", "bad", "c"):
            context.row_thread.submit_rows(
                context.state, lambda name=name: save(name, "{}"), lambda _, error: outcomes.append(error is None)
            )

    broker.call(submit)
    broker.settle()
    assert outcomes == [True, False, True]
    assert sorted(context.state.groups()) == ["a", "c"]


def test_one_connection_and_one_address_hold_no_more_pulls_than_their_quotas(broker: RunningBroker) -> None:
    context = limited(broker, held_pulls=3, held_pulls_of_connection=2)
    raw, second, third = broker.connect(), broker.connect(), broker.connect()
    raw.create("T")
    held = [raw.post_pull("T", 0, hold=25_000) for _ in range(2)]
    reply = raw.pull("T", 0, hold=25_000)
    assert reply.code == ResponseCode.SYSTEM_BUSY
    assert "may have 2 pulls that wait for messages" in (reply.remark or "")
    assert (reply.remark or "").startswith("connection ")
    second.post_pull("T", 0, hold=25_000)
    second.bounds("T")
    reply = third.pull("T", 0, hold=25_000)
    assert "address 127.0.0.1 may have 3 pulls" in (reply.remark or "")
    assert refusals(raw, "quota") == 2
    assert third.pull("T", 0).code == ResponseCode.PULL_NOT_FOUND, "a pull that does not wait is answered"
    third.send("T", b"x", queue=0)
    assert [raw.answer(each).code for each in held] == [0, 0]
    assert third.pull("T", 0, hold=25_000).code == 0, "a pull that finds a message is answered"
    for each in (raw, raw, second):
        each.post_pull("T", 1, hold=25_000)
        each.bounds("T")
    assert third.pull("T", 1, hold=25_000).code == ResponseCode.SYSTEM_BUSY
    raw.close()
    second.close()
    while broker.call(lambda: len(context.polls)):
        pass
    assert broker.call(lambda: context.charges.quotas.charged(Quota.HELD_PULLS, "address 127.0.0.1")) == 0


def test_without_the_quota_one_connection_holds_all_pulls(broker: RunningBroker) -> None:
    """Negative control of the test before."""
    context = limited(broker, held_pulls_of_connection=1_000)
    raw = broker.connect()
    raw.create("T")
    for _ in range(10):
        raw.post_pull("T", 0, hold=25_000)
    raw.bounds("T")
    assert broker.call(lambda: len(context.polls)) == 10


def test_seats_in_groups_have_quotas_and_end_with_the_connection(broker: RunningBroker) -> None:
    """Each seat makes the heartbeats of its group's other members cost more."""
    limited(broker, seats=5, seats_of_connection=3)
    raw, other = broker.connect(), broker.connect()
    groups = heartbeat_groups("g1", "g2")
    assert raw.ask(RequestCode.HEART_BEAT, {}, groups("a")).code == 0
    assert raw.ask(RequestCode.HEART_BEAT, {}, groups("a")).code == 0, "these seats are taken already"
    reply = raw.ask(RequestCode.HEART_BEAT, {}, groups("b"))
    assert "may have 3 seats in groups" in (reply.remark or "")
    assert broker.broker.running.context.members.members("g1") == ("a",)
    assert other.ask(RequestCode.HEART_BEAT, {}, heartbeat_groups("g1", "g2", "g3")("c")).code == 0
    third = broker.connect()
    assert "address 127.0.0.1 may have 5 seats" in (third.ask(RequestCode.HEART_BEAT, {}, groups("d")).remark or "")
    raw.close()
    while len(broker.broker.running.server.peers) > 2:
        pass
    assert third.ask(RequestCode.HEART_BEAT, {}, groups("d")).code == 0


def test_without_the_quota_one_connection_takes_seats_for_every_invented_client(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test before."""
    monkeypatch.setattr(Charges, "take_in_all", lambda *_: None)
    limited(broker, seats=5, seats_of_connection=3)
    raw = broker.connect()
    assert {raw.ask(RequestCode.HEART_BEAT, {}, heartbeat_groups("g1")(f"c{n}")).code for n in range(9)} == {0}


def heartbeat_groups(*groups: str) -> Callable[[str], bytes]:
    members = ",".join(f'{{"groupName":"{group}","subscriptionDataSet":[]}}' for group in groups)
    return lambda client: f'{{"clientID":"{client}","consumerDataSet":[{members}]}}'.encode()


def search(raw: RawClient, key: str) -> int:
    ext = {"topic": "T", "key": key, "maxNum": "1", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    return raw.post(RequestCode.QUERY_MESSAGE, ext)


def test_a_client_that_searches_does_not_keep_others_from_searching(broker: RunningBroker) -> None:
    """Neither one on the same address nor one on another: each waits for one search of the others."""
    context = limited(broker)
    looked, look, free = [], context.store.query, threading.Event()

    def query(topic: str, key: str, *more: int) -> list[bytes]:
        looked.append(key)
        free.wait(30)
        return look(topic, key, *more)

    context.store.query = query  # type: ignore[method-assign]
    greedy, beside, elsewhere = broker.connect(), broker.connect(), RawClient(broker.address, source="127.0.0.2")
    greedy.create("T")
    asked = [search(greedy, f"greedy {number}") for number in range(Quota.SEARCHES.value.of_connection or 0)]
    reply = greedy.answer(search(greedy, "one more"))
    assert reply.code == ResponseCode.SYSTEM_BUSY
    assert "may have 10 searches under way" in (reply.remark or "")
    others = [(beside, search(beside, "beside")), (elsewhere, search(elsewhere, "elsewhere"))]
    for client, _ in others:
        client.bounds("T")  # answered after the search was taken
    free.set()
    for client, opaque in (*others, *((greedy, each) for each in asked)):
        assert client.answer(opaque).code == ResponseCode.QUERY_NOT_FOUND
    elsewhere.close()
    assert {"beside", "elsewhere"} <= set(looked[:4]), looked
    assert context.charges.quotas.charged(Quota.SEARCHES, "address 127.0.0.1") == 0


def test_parked_lanes_have_a_quota_and_give_back_what_leaves(broker: RunningBroker) -> None:
    """The key of a request to park is what the client says, so one message is enough for any number of lanes."""
    limited(broker, parked_bytes=5_000)
    raw = broker.connect()
    raw.create("T")
    raw.send("T")
    owners = {group: raw.lane_lock("c", group=group).lane_leases[0].epoch for group in ("g", "h")}

    def ask(code: RequestCode, body: bytes, group: str = "g") -> Command:
        queue = {"consumerGroup": group, "topic": "T", "queueId": "0", "bname": broker.broker.options.name}
        ext = {**queue, "laneClient": "c", "laneEpoch": str(owners[group])}
        return raw.ask(code, ext, body)

    def park(key: str, group: str = "g") -> ParkAnswer:
        body = ParkBody(key=key, offsets=[0], failed=True, reason="broken", attempts=1).encode()
        return ParkAnswer.decode(ask(RequestCode.LANE_PARK, body, group).body)

    assert [park(f"k{number}").settled for number in range(5)] == [1, 1, 1, 0, 0]
    assert "may have 5000 bytes of parked lanes" in park("k4").remark
    assert park("k4", "h").settled == 0, "all groups of an address count together"
    assert len(broker.progress("g", "T").lanes) == 3
    assert refusals(raw, "quota") == 4
    ask(RequestCode.LANE_PARK_NEXT, NextBody(key="k0", done=0, wanted=0).encode())
    assert park("k4", "h").settled == 1


def test_without_the_quota_one_message_fills_the_memory_with_lanes(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test before."""
    monkeypatch.setattr(Charges, "grow", lambda *_: None)
    with pytest.raises(AssertionError, match=r"\[1, 1, 1, 1, 1\]"):
        test_parked_lanes_have_a_quota_and_give_back_what_leaves(broker)


def connections_of(running: RunningBroker) -> int:
    """How many connections a broker accepts."""
    return running.broker.running.server.limits.total


def test_connections_leave_the_descriptors_that_files_need(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    may_open(monkeypatch, 1_024)
    running = start()
    files = running.broker.running.context.store.open_files + descriptors.OTHER_FILES
    assert files > descriptors.OTHER_FILES
    assert connections_of(running) == 1_024 - files


def test_connections_follow_the_number_of_log_files_and_the_limit_of_the_process(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    may_open(monkeypatch, 1_024)
    running = start(clock=ManualClock(), segment_bytes=64 * 1024)
    raw, before = running.connect(), connections_of(running)
    for _ in range(5):
        raw.send("T", bytes(60_000))
    running.advance(1_000)
    assert connections_of(running) == before - 5
    shown = running.broker.running.context.options.shown(running.broker.running.context.in_force)
    assert shown["max_connections"][0] == str(before - 5)
    assert f"at most {before - 5} connections instead of 10000" in caplog.text
    may_open(monkeypatch, 100_000)
    running.advance(1_000)
    assert connections_of(running) == 10_000


def test_the_newest_connections_are_closed_if_there_are_too_few_descriptors_for_files(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(clock=ManualClock())
    first = running.connect()
    others = [running.connect() for _ in range(descriptors.MIN_CONNECTIONS + 2)]
    for each in others:
        each.bounds("T")
    may_open(monkeypatch, 300)
    running.advance(1_000)
    assert [each.is_closed_by_broker() for each in others[-3:]] == [True] * 3
    assert connections_of(running) == descriptors.MIN_CONNECTIONS
    assert first.send("T").code == 0
    assert others[0].send("T").code == 0
    assert refusals(first, "connections") == 3


def may_open(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    monkeypatch.setattr(descriptors, "open_files_limit", lambda: files)


def test_control_without_the_reserve_connections_may_take_every_descriptor(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_open(monkeypatch, 1_024)
    monkeypatch.setattr(descriptors, "connections_within", lambda limit, *, wanted, files: wanted)
    assert connections_of(start()) > 1_024
