"""Addresses as people write them: `host:port`, several joined by `;` or `,`."""

from typing import NamedTuple

from lanemq.model.errors import InvalidOption


class Address(NamedTuple):
    """Where a peer listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int = 9876) -> Address:
    """One address; a missing port means RocketMQ's name server port."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text.strip(), str(default_port)
    host = host.strip("[]")
    if not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise InvalidOption(f"{text!r} is not an address: write host:port, for example localhost:9876")
    return Address(host, int(port))


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Several addresses, in the order given."""
    parts = [part for part in text.replace(",", ";").split(";") if part.strip()]
    if not parts:
        raise InvalidOption("no server address given: write host:port, for example localhost:9876")
    return tuple(parse_address(part) for part in parts)
