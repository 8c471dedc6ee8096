"""Codes become errors that know whether a repeat makes sense."""

import pytest

from lanemq.model import errors
from lanemq.wire.codes import STORED_CODES, RequestCode, ResponseCode, error_for


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (2, errors.BrokerBusy),
        (215, errors.BrokerBusy),
        (14, errors.BrokerReadOnly),
        (16, errors.NotAllowed),
        (17, errors.TopicNotFound),
        (26, errors.GroupNotFound),
        (206, errors.GroupNotFound),
        (22, errors.OffsetNotFound),
        (13, errors.MessageRefused),
        (1, errors.BrokerRefused),
        (3, errors.BrokerRefused),
        (99999, errors.BrokerRefused),
        (4101, errors.SequenceGap),
        (4102, errors.ProducerFenced),
        (4103, errors.LeaseLost),
    ],
)
def test_each_refusal_has_its_error(code: int, kind: type[errors.LaneError]) -> None:
    error = error_for(code, "because")
    assert type(error) is kind
    assert "because" in str(error)
    if isinstance(error, errors.BrokerRefused):
        assert (error.code, error.remark) == (code, "because")


def test_missing_remark_still_gives_a_reason_to_read() -> None:
    assert "no reason" in str(error_for(1, None))
    assert "no reason" in str(error_for(4101, None))


def test_only_a_busy_broker_and_a_coordinator_that_does_not_lead_are_asked_again() -> None:
    retriable = {code for code in ResponseCode if error_for(code, "").retriable}
    assert retriable == {ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL, ResponseCode.NOT_LEADER}


def test_late_flush_and_late_copy_count_as_stored() -> None:
    assert set(STORED_CODES) == {0, 10, 11, 12}


def test_codes_of_the_minimum_protocol_have_their_numbers() -> None:
    """A name given to the wrong number would still pass every round trip."""
    expected = {
        "SEND_MESSAGE": 10, "PULL_MESSAGE": 11, "QUERY_CONSUMER_OFFSET": 14, "UPDATE_CONSUMER_OFFSET": 15,
        "SEARCH_OFFSET_BY_TIMESTAMP": 29, "GET_MAX_OFFSET": 30, "GET_MIN_OFFSET": 31, "HEART_BEAT": 34,
        "UNREGISTER_CLIENT": 35, "CONSUMER_SEND_MSG_BACK": 36, "GET_CONSUMER_LIST_BY_GROUP": 38,
        "NOTIFY_CONSUMER_IDS_CHANGED": 40, "LOCK_BATCH_MQ": 41, "UNLOCK_BATCH_MQ": 42,
        "GET_ROUTEINFO_BY_TOPIC": 105, "SEND_MESSAGE_V2": 310, "SEND_BATCH_MESSAGE": 320,
        "LITE_PULL_MESSAGE": 361,
    }  # fmt: skip
    assert {name: RequestCode[name].value for name in expected} == expected
