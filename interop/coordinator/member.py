"""A member as a process: `python -m interop.coordinator.member SERVERS GROUP TOPIC FILE` notes what it handles.

It writes one JSON line for each message. Messages whose value is "fail" fail for good.
"""

import json
import sys
import time
from pathlib import Path

from lanemq import App, HoldKey, Message


def main(servers: str, group: str, topic: str, file: str) -> None:
    app = App(servers, group=group)
    with Path(file).open("a", buffering=1) as notes:

        @app.ordered(topic, on_fail=HoldKey(retries=0))
        def handle(message: Message) -> None:
            if message.value() == "fail":
                raise ValueError("fails for good")
            place = [message.queue.queue_id, message.queue_offset]
            notes.write(
                json.dumps({"t": time.monotonic(), "key": message.key, "at": place, "epoch": message.epoch}) + "\n"
            )

        app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
