"""A broker as a process: prints its address, logs to standard error, ends on SIGTERM."""

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path

from lanemq.broker.app import Broker
from lanemq.broker.config import BrokerOptions
from lanemq.net.address import Address


async def serve(data: Path, **options: int) -> None:
    broker, ended = Broker(BrokerOptions(data, listen=Address("127.0.0.1", 0), **options)), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await broker.start()
    print(broker.address, flush=True)
    await ended.wait()
    await broker.stop()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level="WARNING")
    asyncio.run(serve(Path(sys.argv[1]), **json.loads(sys.argv[2])))
