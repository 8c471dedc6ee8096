"""Many members in one process, until SIGTERM: `python -m interop.coordinator.crowd SERVERS GROUP TOPIC COUNT`."""

import signal
import sys
import threading

from lanemq import App, Message


def main(servers: str, group: str, topic: str, count: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    apps = [App(servers, group=group) for _ in range(int(count))]
    for app in apps:

        @app.ordered(topic, lanes=1)
        def handle(message: Message) -> None:
            pass

        app.start()
    stop.wait()
    for app in apps:
        app.stop(now=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
