"""The unmodified Java client in one small JVM with its own home folder."""

from pathlib import Path

from interop.harness import Harness
from interop.harness_client import HarnessClient
from interop.maven import client_classpath

_SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k", "-Xmx512m")


def java_client(name: str, version: str, address: str, folder: Path) -> HarnessClient:
    """A client of this RocketMQ version ("4.9" or "5") that uses the name server at the address."""
    command = [
        "java", *_SMALL_JVM, f"-Duser.home={folder}", f"-Drocketmq.client.logRoot={folder}",
        "-cp", client_classpath(version), "Harness", address,
    ]  # fmt: skip
    return HarnessClient(name, lambda: Harness(command, folder / f"{name}.err"))
