"""What the console reads of brokers other than LaneMQ's."""

from tests.client.fake_cluster import FakeCluster

from lanemq.client.admin.watching import NOT_SHOWN, WatchAdmin
from lanemq.wire.codes import RequestCode


def test_secrets_among_the_options_of_an_apache_broker_are_not_shown() -> None:
    """It registers everything that its file has, credentials too, and everyone who reaches the console may look."""
    body = (
        b"fileReservedTime=72\nauthenticationEnabled=true\n"
        b'innerClientAuthenticationCredentials={"accessKey":"a","secretKey":"hush"}\n'
        b'initAuthenticationUser={"username":"root","password":"hush"}\ntlsKeyPassword=hush\nrocketmq.secretKey=hush\n'
    )
    with FakeCluster(["broker-a"]) as cluster, WatchAdmin(cluster.address) as admin:
        cluster.brokers["broker-a"].answers[RequestCode.GET_BROKER_CONFIG] = lambda _: (0, {}, body)
        found = {each.name: each.value for each in admin.broker_settings()}
    assert found == {
        "fileReservedTime": "72",
        "authenticationEnabled": "true",
        "innerClientAuthenticationCredentials": NOT_SHOWN,
        "initAuthenticationUser": NOT_SHOWN,
        "tlsKeyPassword": NOT_SHOWN,
        "rocketmq.secretKey": NOT_SHOWN,
    }
