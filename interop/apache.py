"""Runs Apache RocketMQ for a `with` block: one name server, one broker, loopback, small heaps.

It writes only below one folder of the caller; the user's home folder is not touched.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from interop.children import running
from interop.maven import server_classpath
from interop.ports import HOST, eventually, free_port, route

BROKER_NAME = "apache"
CLUSTER = "interop"
START_SECONDS = 240.0
FAST_PORT, HA_PORT = -2, 1
"""BrokerController: a broker also listens two below its port (VIP) and one above (replication)."""

SMALL_JVM = (
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms64m", "-XX:MaxDirectMemorySize=256m",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)  # fmt: skip


@contextlib.contextmanager
def apache(version: str, folder: Path, name: str = BROKER_NAME) -> Iterator[str]:
    """Yields the name server's address once the broker is in its routes; stops both at the end."""
    names = free_port()
    broker = free_port((FAST_PORT, HA_PORT))
    classpath = server_classpath(version)
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    for silent in ("logback_namesrv.xml", "logback_broker.xml"):  # 4.9.x does not start without them
        (folder / "conf" / silent).write_text("<configuration/>")
    names_conf = _write(folder / "conf" / "namesrv.conf", {"listenPort": names})
    broker_conf = _write(folder / "conf" / "broker.conf", _broker_settings(name, names, broker, folder / "store"))
    with (
        _running(folder, classpath, "128m", "org.apache.rocketmq.namesrv.NamesrvStartup", names_conf),
        _running(folder, classpath, "512m", "org.apache.rocketmq.broker.BrokerStartup", broker_conf),
    ):
        eventually(lambda: route(names, "TBW102"), START_SECONDS, f"Apache RocketMQ {version} in {folder}")
        yield f"{HOST}:{names}"


def _broker_settings(name: str, names: int, broker: int, store: Path) -> dict[str, object]:
    """RocketMQ's defaults, except for sizes (the defaults reserve gigabytes) and the send queue: by default a send
    that waits 200 ms is refused, and on a busy machine many would be."""
    return {
        "brokerClusterName": CLUSTER,
        "brokerName": name,
        "brokerId": 0,
        "brokerIP1": HOST,
        "listenPort": broker,
        "namesrvAddr": f"{HOST}:{names}",
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "mappedFileSizeCommitLog": 64 * 1024 * 1024,
        "mappedFileSizeConsumeQueue": 20 * 60_000,
        "maxHashSlotNum": 50_000,
        "maxIndexNum": 200_000,
        "diskMaxUsedSpaceRatio": 99,
        "deleteWhen": "04",
        "flushDiskType": "ASYNC_FLUSH",
        "autoCreateTopicEnable": "true",
        "autoCreateSubscriptionGroup": "true",
        "timerWheelEnable": "false",
        "waitTimeMillsInSendQueue": 10_000,
    }


def _write(path: Path, settings: dict[str, object]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


@contextlib.contextmanager
def _running(folder: Path, classpath: str, heap: str, main: str, conf: Path) -> Iterator[None]:
    command = [
        "java",
        *SMALL_JVM,
        f"-Xmx{heap}",
        f"-Duser.home={folder}",
        "-cp",
        classpath,
        main,
        "-c",
        str(conf),
    ]
    with running(command, folder / f"{conf.stem}.out", cwd=folder, env={**os.environ, "ROCKETMQ_HOME": str(folder)}):
        yield
