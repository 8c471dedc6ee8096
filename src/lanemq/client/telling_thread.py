"""Which thread tells callers what became of their messages.

The rule guarded here: callbacks of `submit` run on the thread that settles messages, so nothing in them may wait for
a message to be settled: it would wait for itself.
"""

import threading

from lanemq.model.errors import UsageError


class Here(threading.local):
    """What the present thread is doing."""

    is_telling = False
    """Callers' callbacks run now; nothing is settled on this thread before they return."""

    def check_may_wait(self, call: str) -> None:
        if self.is_telling:
            raise UsageError(
                f"{call}() inside a callback of submit() would wait for the thread it runs on: use submit() there, "
                f"or leave it to another thread"
            )
