"""Apache Kafka: one node that is broker and controller (KRaft), one log folder."""

import base64
import os
import socket
import struct
import uuid

from interop.maven import run_tool
from interop.ports import HOST, free_port

from benchmarks.peers import packages
from benchmarks.peers.processes import PeerServer

JVM = (
    "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
)  # fmt: skip
"""What Kafka's own start script uses."""
API_VERSIONS = 18


class KafkaServer(PeerServer):
    name = "kafka"
    settings = (
        "Apache Kafka 3.9.1 (Maven), KRaft, one node, heap and collector of its start script, replication 1, no delay "
        "for the first member of a group; durable: `flush.messages=1` on the topic, so acknowledgements wait for fsync"
    )

    fetch = staticmethod(packages.kafka)

    def prepare(self) -> None:
        self._classpath = self.fetch()
        self._settings = self.folder / "server.properties"
        controller = free_port()
        values = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.folder / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        cluster = cluster.replace("-", "A", 1) if cluster.startswith("-") else cluster
        format_ = ["kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(self._settings)]
        run_tool("java", "-XX:TieredStopAtLevel=1", "-cp", self._classpath, *format_)

    def start(self) -> None:
        self.run(["java", *JVM, "-cp", self._classpath, "kafka.Kafka", str(self._settings)], {"LOG_DIR": os.devnull})

    def is_ready(self) -> bool:
        """Asks for its versions, as every client does first."""
        body = struct.pack(">hhi", API_VERSIONS, 0, 1) + struct.pack(">h", -1)
        with socket.create_connection((HOST, self.port), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            return len(connection.recv(8)) > 0
