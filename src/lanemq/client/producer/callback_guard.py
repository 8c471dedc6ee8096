"""Which thread does what for a producer, and what it may therefore wait for.

The rules guarded here: callbacks of `submit` run on the thread that settles messages, so nothing in them may wait for
a message to be settled: it would wait for itself. And the thread that keeps deadlines never waits for a broker:
nobody would keep the deadlines of the others.
"""

import threading

from lanemq.model.errors import UsageError


class Here(threading.local):
    """What the present thread is doing."""

    is_telling = False
    """Callers' callbacks run now; nothing is settled on this thread before they return."""
    is_keeper = False

    def check_may_wait(self, call: str) -> None:
        if self.is_telling:
            raise UsageError(
                f"{call}() inside a callback of submit() would wait for the thread it runs on: use submit() there, "
                f"or leave it to another thread"
            )
