"""Which event loop consumers and brokers use."""

import _thread

import pytest

from lanemq.net.fast_loop import fast_loop


def test_greenlets_instead_of_threads_get_the_loop_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    """As gevent and eventlet replace it. uvloop would stop all greenlets while it waits."""
    uvloop = pytest.importorskip("uvloop")
    assert fast_loop() is uvloop.new_event_loop
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: 0)
    assert fast_loop() is None
