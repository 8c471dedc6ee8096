"""Promise 5: a stale owner is refused."""

import msgspec
import pytest
from tests.chaos.mutants import epoch_check
from tests.chaos.roles import FOUR_QUEUES
from tests.chaos.system import TOPIC

from lanemq.client.producer.producer import Producer
from lanemq.net.address import parse_address
from lanemq.net.calling.blocking import BlockingConnection
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.bodies import LockRequest, QueueBody
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import LockHeader, UpdateOffsetHeader

GROUP = "g"


class Member:
    """One connection of one client id, with the epoch that it was granted."""

    def __init__(self, broker: EmbeddedBroker, name: str) -> None:
        self.name = name
        self.epoch = 0
        self._wire = BlockingConnection(parse_address(broker.address))

    def lock(self) -> int:
        """Returns the granted epoch, or 0 if refused."""
        header = LockHeader(lane_lease_millis=60_000).to_ext()
        reply = self._wire.request(Command(RequestCode.LOCK_BATCH_MQ, 0, ext=header, body=self._body()))
        leases = msgspec.json.decode(reply.body).get("laneLeases") or []
        self.epoch = leases[0]["epoch"] if leases else 0
        return self.epoch

    def unlock(self) -> None:
        self._wire.request(Command(RequestCode.UNLOCK_BATCH_MQ, 0, body=self._body()))

    def commit(self, offset: int) -> int:
        header = UpdateOffsetHeader(
            consumer_group=GROUP, topic=TOPIC, queue_id=0, commit_offset=offset,
            lane_client=self.name, lane_epoch=self.epoch,
        )  # fmt: skip
        return self._wire.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, 0, ext=header.to_ext())).code

    def close(self) -> None:
        self._wire.close()

    def _body(self) -> bytes:
        queue = QueueBody(topic=TOPIC, broker_name="lanemq", queue_id=0)
        return LockRequest(consumer_group=GROUP, client_id=self.name, mq_set=[queue]).encode()


pytestmark = pytest.mark.lanemq(own_broker=True)


@pytest.fixture
def broker(lanemq_broker: EmbeddedBroker) -> EmbeddedBroker:
    with Producer(lanemq_broker.address, create=FOUR_QUEUES) as producer:
        producer.send(TOPIC, 0, key="k", queue=0)
    return lanemq_broker


def stale_and_new(broker: EmbeddedBroker) -> tuple[Member, Member]:
    """`old` had the queue and does not know that it lost it to `new`."""
    old, new = Member(broker, "old"), Member(broker, "new")
    assert old.lock() == 1
    assert old.commit(1) == ResponseCode.SUCCESS
    assert new.lock() == 0
    old.unlock()
    assert new.lock() == 2
    return old, new


def test_a_commit_with_an_old_epoch_is_rejected(broker: EmbeddedBroker) -> None:
    """ "Its commit carries an old epoch and is rejected.\""""
    old, new = stale_and_new(broker)
    assert old.commit(1) == ResponseCode.LEASE_REFUSED
    assert new.commit(1) == ResponseCode.SUCCESS
    old.close()
    new.close()


def test_epochs_survive_a_restart(broker: EmbeddedBroker) -> None:
    """ "Epochs survive a broker restart.\""""
    old, new = stale_and_new(broker)
    old.close()
    new.close()
    broker.stop()
    broker.start()
    again, latest = Member(broker, "old"), Member(broker, "new")
    again.epoch, latest.epoch = 1, 2
    assert again.commit(1) == ResponseCode.LEASE_REFUSED
    assert latest.commit(1) == ResponseCode.SUCCESS
    latest.unlock()
    assert again.lock() == 3
    again.close()
    latest.close()


def test_without_the_epoch_check_a_stale_commit_is_accepted(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control; in tests/chaos the checker finds it in a whole run."""
    epoch_check(monkeypatch.setattr)
    old, new = stale_and_new(broker)
    assert old.commit(1) == ResponseCode.SUCCESS
    old.close()
    new.close()
