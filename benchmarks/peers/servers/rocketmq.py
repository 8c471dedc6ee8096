"""Apache RocketMQ: a name server and a broker."""

from pathlib import Path

from interop.ports import HOST, ask, free_port, route

from benchmarks.peers import packages
from benchmarks.peers.processes import PeerServer

UPDATE_AND_CREATE_TOPIC = 17
NEIGHBOURS = (-2, 1)
"""A broker also listens two below its port and one above."""
JVM = (
    "-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=1g",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)  # fmt: skip


class RocketServer(PeerServer):
    name = "rocketmq"
    settings = (
        "Apache RocketMQ 5.3.3 (Maven), name server and broker, heap 1 GB (its script says 8), sends may wait 10 s in "
        "the broker instead of 0.2; relaxed: `ASYNC_FLUSH`, durable: `SYNC_FLUSH`"
    )

    timer_wheel = False
    """Delayed messages of any time, which cost a thread. Consumers over gRPC need it."""

    fetch = staticmethod(packages.rocketmq)

    def prepare(self) -> None:
        self._classpath = self.fetch()
        self._broker = free_port(NEIGHBOURS)
        values = {
            "brokerClusterName": "peers",
            "brokerName": "peer",
            "brokerId": 0,
            "brokerIP1": HOST,
            "listenPort": self._broker,
            "namesrvAddr": self.address,
            "storePathRootDir": self.folder / "store",
            "storePathCommitLog": self.folder / "store" / "commitlog",
            "diskMaxUsedSpaceRatio": 99,
            "flushDiskType": "SYNC_FLUSH" if self.durable else "ASYNC_FLUSH",
            "timerWheelEnable": str(self.timer_wheel).lower(),
            "waitTimeMillsInSendQueue": 10_000,
        }
        self._names_settings = self._write("names.conf", {"listenPort": self.port})
        self._broker_settings = self._write("broker.conf", values)

    def start(self) -> None:
        self._java("org.apache.rocketmq.namesrv.NamesrvStartup", self._names_settings)
        self._java("org.apache.rocketmq.broker.BrokerStartup", self._broker_settings)

    def is_ready(self) -> bool:
        return bool(route(self.port, "TBW102"))

    def create_topic(self, topic: str, queues: int) -> None:
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        code, body, _ = ask(self._broker, UPDATE_AND_CREATE_TOPIC, fields)
        if code != 0:
            raise RuntimeError(f"RocketMQ did not create the topic {topic}: {body!r}")

    def _java(self, main: str, settings: Path) -> None:
        command = ["java", *JVM, f"-Duser.home={self.folder}", "-cp", self._classpath, main, "-c", str(settings)]
        self.run(command, {"ROCKETMQ_HOME": str(self.folder)})

    def _write(self, name: str, values: dict[str, object]) -> Path:
        path = self.folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        return path
