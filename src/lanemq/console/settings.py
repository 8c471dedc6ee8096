"""The settings of a console, and where each came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lanemq.model.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The settings of one console, checked when they are made."""

    server: str
    """Address of a LaneMQ broker or of RocketMQ name servers."""
    listen: str = ""
    """Address on which this console listens; empty if the server has not set it."""
    every: float = 2.0
    """Seconds between two snapshots while a page is open. Small: the brokers are asked often. Large: pages lag."""
    history: Path | None = None
    """Folder of histories: shows every turn of a key, and is checked for broken promises. None: neither."""
    pipelines: tuple[Path, ...] = ()
    """Checkpoints of pipelines, or files that declare them."""
    spark_page: str = ""
    """Address of Spark's own page, to which the pipelines link; empty: no link."""
    remote_writes: bool = False
    """Whether clients on other machines may change something after they signed in."""
    allow_hosts: tuple[str, ...] = ()
    """Host names under which the console may be used, beside localhost and addresses."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each value came from: `command line`, `environment LANEMQ_SERVER` or `default`."""

    def __post_init__(self) -> None:
        if self.every < 0.2:
            raise InvalidOption(f"every={self.every}: at least 0.2 s between two snapshots, or the brokers are busy")
        if self.spark_page and not self.spark_page.startswith(("http://", "https://")):
            raise InvalidOption(
                f"spark_page={self.spark_page!r}: write an address that begins with http:// or https://"
            )
