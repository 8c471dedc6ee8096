"""Starts an Apache RocketMQ cluster with small heaps: name servers, brokers with replicas, a controller.

Every process is a `Node` that can be killed, frozen and started again. Ports are chosen once, so a node comes back at
its old address. Everything is written below one folder.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interop.apache import FAST_PORT, HA_PORT, SMALL_JVM
from interop.maven import server_classpath
from interop.ports import HOST, ask, eventually, lasting_port, route

CLUSTER = "cluster"
START_SECONDS = 300.0
GET_BROKER_CLUSTER_INFO = 106
GET_TOPIC_CONFIG = 351
GET_SYNC_STATE_DATA = 1006
"""Of a controller."""
MASTER = "0"


@dataclass(frozen=True)
class ClusterPlan:
    """Which processes a cluster has."""

    name_servers: int = 1
    brokers: tuple[str, ...] = ("broker-a", "broker-b")
    replicas: int = 1
    """Copies of each broker, the master included."""
    controller: bool = False
    """A controller chooses the master of each broker. Without one, the first replica is always the master."""
    layouts_in_routes: bool = False
    """`orderMessageEnable`."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """More settings of every broker."""


class Node:
    """One process of the cluster."""

    def __init__(self, name: str, main: str, settings: Mapping[str, object], folder: Path, heap: str) -> None:
        self.name = name
        self.folder = folder / name
        self._main, self._heap = main, heap
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.frozen = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts the process, or starts it again over the same files."""
        assert not self.running, self.name
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self._command()
        env = {**os.environ, "ROCKETMQ_HOME": str(self.folder)}
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        self.frozen = False

    def _command(self) -> list[str]:
        """The command line, whose files are written."""
        conf = self.folder / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        for silent in ("logback_namesrv.xml", "logback_broker.xml", "logback_controller.xml"):
            (conf / silent).write_text("<configuration/>")
        properties = conf / "node.conf"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        return [
            "java", *SMALL_JVM, f"-Xmx{self._heap}", f"-Duser.home={self.folder}", "-cp", server_classpath("5"),
            self._main, "-c", str(properties),
        ]  # fmt: skip

    def kill(self) -> None:
        """`kill -9`."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)
        self.frozen = False

    def stop(self) -> None:
        """Ends the process at the end of a test."""
        if self.running:
            self.kill()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


class Cluster:
    """The running processes of a plan."""

    def __init__(self, plan: ClusterPlan, folder: Path) -> None:
        self.plan = plan
        self._ports = [lasting_port() for _ in range(plan.name_servers)]
        self.address = ";".join(f"{HOST}:{port}" for port in self._ports)
        self.name_servers = [
            Node(
                f"names-{number}",
                "org.apache.rocketmq.namesrv.NamesrvStartup",
                self._names(folder, port),
                folder,
                "96m",
            )
            for number, port in enumerate(self._ports)
        ]
        self.controller: Node | None = None
        self._controller_port = lasting_port() if plan.controller else 0
        if plan.controller:
            main = "org.apache.rocketmq.controller.ControllerStartup"
            self.controller = Node("controller", main, self._controlling(folder), folder, "128m")
        self.brokers: dict[str, list[Node]] = {}
        self._broker_ports: dict[int, Node] = {}
        for broker in plan.brokers:
            self.brokers[broker] = [self._broker(broker, replica, folder) for replica in range(plan.replicas)]

    @property
    def nodes(self) -> list[Node]:
        controllers = [self.controller] if self.controller is not None else []
        return [*self.name_servers, *controllers, *(node for group in self.brokers.values() for node in group)]

    def start(self) -> None:
        for node in self.nodes:
            if all(node not in group[1:] for group in self.brokers.values()):
                node.start()
        self.wait_until_registered()
        # One after the other: two replicas that ask a new controller for their ids at once may both wait for ever.
        for number in range(1, self.plan.replicas):
            for group in self.brokers.values():
                group[number].start()
            self.wait_until_registered()
        self.wait_until_in_sync()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def master(self, broker: str) -> Node | None:
        """The replica that a name server lists as master of the broker."""
        for port in self._ports:
            address = self._addresses(port).get(broker, {}).get(MASTER)
            if address is not None:
                return self._broker_ports.get(int(address.rpartition(":")[2]))
        return None

    def replicas(self, broker: str) -> list[Node]:
        """The replicas that are not the master."""
        master = self.master(broker)
        return [node for node in self.brokers[broker] if node is not master]

    def wait_until_registered(self, within: float = START_SECONDS) -> None:
        """Waits until every running name server lists every running broker, and a master for each."""
        for node, port in zip(self.name_servers, self._ports, strict=True):
            if node.running and not node.frozen:
                eventually(lambda port=port: self._is_complete(port), within, f"all brokers at {node.name}")  # type: ignore[misc]

    def wait_until_in_sync(self, within: float = START_SECONDS) -> None:
        """Waits until the controller has all replicas in its in-sync sets: only those can become master."""
        for broker in self.plan.brokers if self.plan.controller else ():
            eventually(lambda broker=broker: self._in_sync(broker), within, f"replicas of {broker} in sync")  # type: ignore[misc]

    def _in_sync(self, broker: str) -> bool:
        try:
            code, body, _ = ask(self._controller_port, GET_SYNC_STATE_DATA, {}, json.dumps([broker]).encode())
        except OSError:
            return False
        if code != 0:
            return False
        table = json.loads(body)["replicasInfoTable"]
        return len(table.get(broker, {}).get("inSyncReplicas", [])) == self.plan.replicas

    def wait_until_routed(self, topic: str, within: float = START_SECONDS) -> None:
        """Waits until every running name server has the topic on every broker."""
        for node, port in zip(self.name_servers, self._ports, strict=True):
            if node.running and not node.frozen:
                eventually(lambda port=port: self._has(port, topic), within, f"topic {topic} at {node.name}")  # type: ignore[misc]

    def wait_until_replicated(self, topic: str, within: float = START_SECONDS) -> None:
        """Waits until every replica has the topic: replicas copy topics and offsets from their master every 10 s."""
        for port, node in self._broker_ports.items():
            if node.running and not node.frozen:
                eventually(lambda port=port: self._knows(port, topic), within, f"topic {topic} at {node.name}")  # type: ignore[misc]

    def _knows(self, port: int, topic: str) -> bool:
        try:
            return ask(port, GET_TOPIC_CONFIG, {"topic": topic})[0] == 0
        except OSError:
            return False

    def _has(self, port: int, topic: str) -> bool:
        found = route(port, topic)
        return found is not None and len(found["queueDatas"]) == len(self.plan.brokers)

    def _is_complete(self, port: int) -> bool:
        listed = self._addresses(port)
        wanted = {name: sum(node.running for node in nodes) for name, nodes in self.brokers.items()}
        return all(
            not count or (len(listed.get(name, {})) >= count and MASTER in listed[name])
            for name, count in wanted.items()
        )

    def _addresses(self, port: int) -> dict[str, dict[str, str]]:
        """The addresses of each broker by broker id, as one name server has them; 0 is the master."""
        from lanemq.wire.route_bodies import ClusterInfo

        try:
            code, body, _ = ask(port, GET_BROKER_CLUSTER_INFO, {})
        except OSError:
            return {}
        if code != 0:
            return {}
        table = ClusterInfo.decode(body).broker_addr_table
        return {name: {str(number): at for number, at in data.broker_addrs.items()} for name, data in table.items()}

    def _names(self, folder: Path, port: int) -> dict[str, object]:
        home = folder / f"names-{port}"
        return {
            "listenPort": port,
            "kvConfigPath": home / "kvConfig.json",
            "configStorePath": home / "namesrv.properties",
            "orderMessageEnable": str(self.plan.layouts_in_routes).lower(),
        }

    def _controlling(self, folder: Path) -> dict[str, object]:
        return {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-{HOST}:{self._controller_port}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": folder / "controller" / "store",
            "enableElectUncleanMaster": "false",
            "notifyBrokerRoleChanged": "true",
        }

    def _broker(self, name: str, replica: int, folder: Path) -> Node:
        port = lasting_port((FAST_PORT, HA_PORT))
        node_name = f"{name}-{replica}"
        store = folder / node_name / "store"
        settings: dict[str, object] = {
            "brokerClusterName": CLUSTER,
            "brokerName": name,
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "listenPort": port,
            "haListenPort": port + HA_PORT,
            "namesrvAddr": self.address,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "mappedFileSizeCommitLog": 16 * 1024 * 1024,
            "mappedFileSizeConsumeQueue": 20 * 20_000,
            "maxHashSlotNum": 20_000,
            "maxIndexNum": 80_000,
            "diskMaxUsedSpaceRatio": 99,
            "flushDiskType": "ASYNC_FLUSH",
            "timerWheelEnable": "false",
            "waitTimeMillsInSendQueue": 10_000,
            **self._role(replica),
            **self.plan.settings,
        }
        node = Node(node_name, "org.apache.rocketmq.broker.BrokerStartup", settings, folder, "256m")
        self._broker_ports[port] = node
        return node

    def _role(self, replica: int) -> dict[str, Any]:
        if self.plan.controller:
            return {
                "brokerId": -1,
                "brokerRole": "SLAVE",
                "enableControllerMode": "true",
                "controllerAddr": f"{HOST}:{self._controller_port}",
                "allAckInSyncStateSet": "true",
            }
        if self.plan.replicas > 1:
            role = "SLAVE" if replica else "SYNC_MASTER"
            return {"brokerId": replica, "brokerRole": role}
        return {"brokerId": 0, "brokerRole": "ASYNC_MASTER"}


@contextlib.contextmanager
def running_cluster(plan: ClusterPlan, folder: Path) -> Iterator[Cluster]:
    """A cluster for a `with` block; all its processes end with the block."""
    cluster = Cluster(plan, folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
