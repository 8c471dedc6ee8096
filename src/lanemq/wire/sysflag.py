"""Bits of `sysFlag`: what kind of message a record or a send is, and what a pull asks for.

The numbers are RocketMQ's (MessageSysFlag, PullSysFlag).
"""

from typing import Final

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

PULL_COMMIT_OFFSET: Final = 0x1
"""The request's commitOffset counts."""
PULL_SUSPEND: Final = 0x2
"""The broker may hold the request until a message arrives."""
PULL_SUBSCRIPTION: Final = 0x4
"""The request brings its own filter expression."""
PULL_CLASS_FILTER: Final = 0x8
PULL_LITE: Final = 0x10
