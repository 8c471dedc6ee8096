"""Addresses as people write them: `host:port`, several joined by `;` or `,`, or as a list."""

import ipaddress
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from lanemq.model.errors import InvalidOption

Servers: TypeAlias = str | Iterable[str]
"""What `servers` takes: one address, several joined by `;`, or a list of them."""


class Address(NamedTuple):
    """Where a peer listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def origin_of(host: str) -> str:
    """Where a client comes from, for limits: its address, or the /64 network of an IPv6 address.

    One machine usually has a whole /64 network to itself and may use another of its addresses for each connection.
    Addresses of this machine and of its own link are not joined: other machines may have neighbouring ones.
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback or address.is_link_local:
        return host
    return str(ipaddress.IPv6Network((int(address), 64), strict=False))


MAX_PORT = 65_535


def parse_address(text: str, default_port: int = 9876) -> Address:
    """One address; a missing port means RocketMQ's name server port."""
    stripped = text.strip()
    scheme, is_url, rest = stripped.partition("://")
    if is_url:
        raise InvalidOption(
            f"{text!r} is a URL: write it without {scheme}://, as {rest.partition('/')[0] or 'host:port'}"
        )
    if stripped.isdigit() and int(stripped) <= MAX_PORT:
        raise InvalidOption(f"{text!r} is a port without a host: write HOST:PORT, such as 127.0.0.1:{stripped}")
    host, colon, port = stripped.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = stripped, str(default_port)
    host = host.strip("[]")
    if (port.isdigit() and int(port) > MAX_PORT) or stripped.isdigit():
        raise InvalidOption(f"{text!r}: ports are numbers from 0 to {MAX_PORT}")
    if not host or "/" in host or not port.isdigit():
        raise InvalidOption(f"{text!r} is not an address: write host:port, for example localhost:9876")
    return Address(host, int(port))


def parse_addresses(servers: Servers) -> tuple[Address, ...]:
    """Several addresses, in the order given."""
    text = servers_text(servers)
    parts = [part for part in text.replace(",", ";").split(";") if part.strip()]
    if not parts:
        raise InvalidOption("no server address given: write host:port, for example localhost:9876")
    return tuple(parse_address(part) for part in parts)


def servers_text(servers: Servers) -> str:
    """The addresses in one text, joined by `;`. Raises `InvalidOption` for anything but text and lists of text."""
    if isinstance(servers, str):
        return servers
    each = tuple(servers) if isinstance(servers, Iterable) else ()
    if not each or not all(isinstance(one, str) for one in each):
        raise InvalidOption(f"servers={servers!r} must be host:port, such as 'localhost:9876', or a list of those")
    return ";".join(each)
