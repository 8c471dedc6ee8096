"""Spark's JVM in a process group of its own, so that a signal to our group reaches us and not Spark beneath us.

`timeout`, shells and supervisors signal whole groups. The rule guarded here: the first SIGTERM lets the running batch
finish, which needs a JVM that lives; it still ends with this process, whose end closes its standard input.
"""

import contextlib
import os
from collections.abc import Iterator

_asked = False
_hooked = False


@contextlib.contextmanager
def children_in_own_group() -> Iterator[None]:
    """Processes that are started inside, the way pyspark starts its JVM, leave our process group.

    Pyspark offers no way to say so. It runs code of its own between fork and exec, and then Python runs this as well.
    """
    global _asked, _hooked
    if not _hooked:
        os.register_at_fork(after_in_child=_leave)
        _hooked = True
    _asked = True
    try:
        yield
    finally:
        _asked = False


def _leave() -> None:
    if _asked:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
