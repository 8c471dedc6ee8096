"""The transport of a connection without a socket."""

import asyncio
from typing import Any


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self, **extra: object) -> None:
        super().__init__(extra)
        self.writes: list[bytes] = []
        self.lines: list[list[bytes]] = []

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def writelines(self, list_of_data: Any) -> None:
        self.lines.append(list(list_of_data))
        super().writelines(list_of_data)

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...
