"""A broker with TLS and access control. Its only user, `root`, may do everything."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.certificates import Authority

from lanemq.broker.config import BrokerOptions
from lanemq.net.address import Address
from lanemq.net.serving.server_tls import ServerTls
from lanemq.testing.embedded import EmbeddedBroker

SECRET = "hush-hush-hush"


def users_file(folder: Path) -> Path:
    """The broker's file of users, with `root` in it."""
    users = folder / "users.toml"
    users.write_text(f'[[user]]\naccess_key = "root"\nsecret_key = "{SECRET}"\nadmin = true\n')
    users.chmod(0o600)
    return users


@contextlib.contextmanager
def guarded_broker(authority: Authority, folder: Path) -> Iterator[EmbeddedBroker]:
    identity, users = authority.issue("broker"), users_file(folder)
    listen, tls = Address("127.0.0.1", 0), ServerTls(identity.cert, identity.key)
    with EmbeddedBroker(BrokerOptions(folder / "data", listen=listen, tls=tls, users=users)) as running:
        yield running
