"""Reports the lag of the streaming queries of a session after each batch.

spark.streams.addListener(LagListener(print, servers="localhost:9876"))
"""

import json
from collections.abc import Callable

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from lanemq.client.security import security_of
from lanemq.net.security import TlsOptions
from lanemq.spark.lag import LagAges, QueueLag, lag_of
from lanemq.wire.signing import Credentials


class LagListener(StreamingQueryListener):
    """Reports the lag of every `lanemq` query of a session after each batch.

    `report` is called with the query's name (its id if it has none) and the lag of its queues. It runs on Spark's
    listener thread, so it should be fast. With `servers` the lag is also measured in seconds. `tls` and `credentials`
    are those of every client; what is not given comes from the environment.
    """

    def __init__(
        self,
        report: Callable[[str, tuple[QueueLag, ...]], object],
        servers: str | None = None,
        *,
        tls: TlsOptions | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._report = report
        security = security_of(tls, credentials)
        self._ages = LagAges(servers, security=security) if servers is not None else None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = json.loads(event.progress.json)
        queues = lag_of(progress)
        if queues:
            name = progress.get("name") or progress["id"]
            self._report(name, self._ages.with_ages(queues) if self._ages is not None else queues)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass

    def close(self) -> None:
        """Closes its connections. Remove the listener from the session first."""
        if self._ages is not None:
            self._ages.close()
