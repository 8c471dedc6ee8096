"""Host fields of records and ids: address and port as 8 bytes.

The rule guarded here: we write IPv4 only, because an IPv6 host changes the layout of a record and older
clients then lose the whole batch without a word. An IPv6 peer is written as 0.0.0.0 with its port.
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct

_HOST = Struct(">4sI")
HOST_BYTES = 8
NO_HOST = bytes(HOST_BYTES)


@lru_cache(maxsize=4096)
def pack_host(ip: str, port: int) -> bytes:
    """The field for a peer; what is no IPv4 address, mapped or plain, becomes 0.0.0.0."""
    return _HOST.pack(_ipv4(ip).packed, port & 0xFFFFFFFF)


def unpack_host(field: bytes) -> str:
    """`ip:port` of a field of 8 bytes, or `[ip]:port` of one of 20."""
    port = int.from_bytes(field[-4:], "big")
    if len(field) == HOST_BYTES:
        return f"{IPv4Address(field[:4])}:{port}"
    return f"[{IPv6Address(field[:16])}]:{port}"


def _ipv4(ip: str) -> IPv4Address:
    try:
        address = ip_address(ip)
    except ValueError:
        return IPv4Address(0)
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or IPv4Address(0)
