"""Bad input for a running broker, over real sockets, while a well-behaved client works beside it.

Each visit is one connection: damaged requests of every code, noise, lengths that lie, frames that are cut off. The
broker may answer or hang up; it may not stop serving the other client, lose what that one was acknowledged, or meet an
unexpected error (which would be in its log).
"""

import contextlib
import socket
import struct
from collections import Counter
from pathlib import Path
from random import Random

from tests.broker.raw_client import RawClient, bodies
from tests.broker.running import BrokerProcess
from tests.fuzz import corpus
from tests.fuzz.mutating import Mutator

from lanemq.net.address import parse_address
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import ONEWAY_BIT, Command, FrameDecoder, decode_command, encode_command

SANE = "SaneClientsOnly"
VISIT = 20
"""Inputs on one connection, if the broker bears them."""
PATIENCE = 30.0
ODD = (
    "", "-1", "0", "1", "31", "2147483647", "-2147483648", "9223372036854775807", "9223372036854775808", "--5",
    "\u00b2", "\u0663", "9" * 5000, "1e9", "NaN", "true", "null", "../../x", "a b", "\0", "\u202e", "x" * 300,
    "%RETRY%g", "%DLQ%g", "TBW102", "SCHEDULE_TOPIC_XXXX", "*", "a||b||", "[1,2", "a\x01b\x02", "REAL_QID\x01x\x02",
    "DELAY\x01\u00b2\x02", "DELAY\x01--5\x02", "LANE_STAMP\x01p.0.9\x02", "TIMER_DELAY_SEC\x01x\x02",
)  # fmt: skip


class Siege:
    """One broker process, one well-behaved client, any number of connections with bad input."""

    def __init__(self, data: Path, seed: int) -> None:
        self.broker = BrokerProcess(data)
        self.seen: Counter[str] = Counter()
        self._random = Random(f"siege {seed}")
        self.codes: Counter[int] = Counter()
        """What was answered, by response code."""
        self._ext = corpus.any_ext()
        self._frames = Mutator(self._random, corpus.frames())
        self._bodies = Mutator(self._random, [*corpus.JSON_BODIES, corpus.BATCH, b""])
        self._sane = RawClient(self.broker.address)
        self._told: list[bytes] = []

    def visit(self) -> None:
        """One connection full of bad input; then the other client must be served."""
        sound = self._random.random() < 0.7
        inputs = [self._nonsense() if sound else self._damaged() for _ in range(VISIT)]
        with socket.create_connection(parse_address(self.broker.address), timeout=PATIENCE) as peer:
            with contextlib.suppress(ConnectionError):
                for data in inputs:
                    peer.sendall(data)
                    self.seen["inputs"] += 1
            if self._random.random() < 0.2:  # gone without a goodbye, and without listening
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                self._listen(peer, inputs)
        self.seen["visits"] += 1
        self.serve_the_sane()

    def _damaged(self) -> bytes:
        """Bytes that are hardly a request."""
        way = self._random.randrange(10)
        if way == 0:
            return self._random.randbytes(self._random.randint(1, 300))
        if way == 1:
            return struct.pack(">II", self._random.getrandbits(32), self._random.getrandbits(25)) + bytes(20)
        return self._frames.make()

    def _nonsense(self) -> bytes:
        """A request that can be read, with nonsense in its fields and its body: this one reaches a handler."""
        ext = dict(self._ext)
        for name in self._random.sample(list(ext), self._random.randint(0, 8)):
            ext[name] = self._random.choice((*ODD, corpus.TOPIC, corpus.GROUP))
        flag = self._random.choice((0, 0, 0, ONEWAY_BIT))
        form = self._random.choice((0, 0, 1))
        code = self._random.choice([each for each in RequestCode if each < 1 << 15 or form == 0])
        return encode_command(Command(code, self._random.getrandbits(20), flag, ext, self._bodies.make(), None,
                                      serialize_type=form))  # fmt: skip

    def _listen(self, peer: socket.socket, inputs: list[bytes]) -> None:
        """Every answer until the broker hangs up, which it must."""
        decoder = FrameDecoder()
        with contextlib.suppress(OSError):
            peer.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while data := peer.recv(1 << 18):
                for frame in decoder.feed(data):
                    answer = decode_command(frame)
                    self.seen["answers"] += 1
                    self.codes[answer.code] += answer.is_response
                    assert "internal error" not in (answer.remark or ""), (answer, inputs)

    def serve_the_sane(self) -> None:
        body = b"sane %d" % len(self._told)
        reply = self._sane.send(SANE, body)
        assert reply.code == 0, reply
        self._told.append(body)

    def end(self) -> None:
        """Everything acknowledged to the other client is there, before and after a restart of the broker."""
        assert bodies(self._sane.read(SANE)) == self._told
        self._sane.close()
        assert self.broker.stop() == 0
        assert "Traceback" not in self.broker.log, self.broker.log[-5000:]

    def close(self) -> None:
        self._sane.close()
        self.broker.kill()

    def memory_kib(self) -> int:
        """What the broker's process takes now."""
        status = Path(f"/proc/{self.broker._process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
