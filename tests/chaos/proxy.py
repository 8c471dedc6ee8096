"""A proxy between clients and a broker whose connections can be cut, blocked, or lose answers.

The broker advertises the proxy's host: the same port on another loopback address.
"""

import contextlib
import socket
import threading
import time
from pathlib import Path
from typing import Any

from lanemq.broker.config import BrokerOptions
from lanemq.net.address import Address, parse_address
from lanemq.testing.embedded import EmbeddedBroker

PROXY_HOST = "127.0.0.2"


class Wire:
    """One client's connection."""

    def __init__(self, client: socket.socket, server: socket.socket, delay: float = 0.0) -> None:
        self.open = threading.Event()
        self.open.set()
        self.loses_answers = False
        self.delay = delay
        """Seconds that answers are held; those that arrive while others are held wait up to twice as long."""
        self.lost = threading.Event()
        self._ends = (client, server)

    def start(self) -> None:
        client, server = self._ends
        for source, target, answers in ((client, server, False), (server, client, True)):
            threading.Thread(target=self._pump, args=(source, target, answers), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.open.wait()
                if answers and self.loses_answers:
                    self.lost.set()
                else:
                    time.sleep(self.delay if answers else 0)
                    target.sendall(data)
        self.cut()

    def cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.open.set()


class ProxiedBroker:
    """A broker that clients reach only through the proxy."""

    def __init__(self, data: Path, **options: Any) -> None:
        self.data = data
        self.broker = EmbeddedBroker(
            BrokerOptions(data, listen=Address("127.0.0.1", 0), advertise=PROXY_HOST, **options)
        ).start()
        port = parse_address(self.broker.address).port
        self.address = f"{PROXY_HOST}:{port}"
        self.wires: list[Wire] = []
        self.delay = 0.0
        """Of the answers on new wires, in seconds."""
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server((PROXY_HOST, port))
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.wires.append(Wire(client, socket.create_connection(self._target), self.delay))
                self.wires[-1].start()  # once it is in the list: a client that was answered looks for its wire

    def hold(self) -> list[Wire]:
        """Blocks the present connections in both directions; new ones work."""
        held = list(self.wires)
        for wire in held:
            wire.open.clear()
        return held

    def lose_answers_and_cut(self, seconds: float) -> bool:
        """Loses the next answers and cuts the connection; returns whether an answer was lost."""
        wire = self.wires[-1]
        wire.loses_answers = True
        lost = wire.lost.wait(seconds)
        wire.cut()
        return lost

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(5)
        for wire in self.wires:
            wire.cut()
        self.broker.stop()
