"""Finalizers and signal handlers that send: they run in the middle of whatever their thread does.

Each program runs in a process of its own, because it hangs where a promise is broken.
"""

import pytest
from tests.client.test_user_code_anywhere import run

WATCHED = """
from lanemq import UsageError

class Log(logging.Handler):
    def __init__(self, producer, call):
        super().__init__()
        self.producer, self.call, self.futures, self.refused = producer, call, [], 0

    def emit(self, record):
        try:
            self.futures.append(getattr(self.producer, self.call)("logs", record.getMessage(), key="log"))
        except UsageError:
            self.refused += 1

def end(text):
    print(text, flush=True)
    os._exit(0)

def watch(seconds):
    time.sleep(seconds)
    import faulthandler
    faulthandler.dump_traceback()
    end("hangs")

threading.Thread(target=watch, args=(25,), daemon=True).start()
producer = Producer(broker.address, create=["orders", "logs"])
producer.send("logs", 0, key="log")
log = Log(producer, "submit")
program_log = logging.getLogger("program")
program_log.addHandler(log)
program_log.propagate = False
program_log.setLevel(logging.INFO)

class Cycle:
    def __init__(self):
        self.me = self

    def __del__(self):
        program_log.info("gone")
"""


def run_watched(program: str) -> str:
    return run(WATCHED + program)


@pytest.mark.parametrize("call", ["submit", "send"])
def test_garbage_that_logs_through_a_producer_hangs_nothing(call: str) -> None:
    """With this threshold, the garbage collector runs in the middle of nearly everything that allocates."""
    written = run_watched(
        f"""
log.call = {call!r}
accepted = []
gc.set_threshold(1)

def work(name):
    for number in range(60):
        Cycle()
        accepted.append(producer.submit("orders", number, key=name))
        if number % 20 == 0:
            producer.send("orders", number, key=name)
            producer.send_many("orders", [(name, number)] * 5)
            producer.flush()
            producer.frozen_keys(), producer.metrics()

threads = [threading.Thread(target=work, args=(str(n),)) for n in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
gc.set_threshold(700)
offsets = [future.result(20).offset for future in accepted]
futures = [future for future in log.futures if isinstance(future, Future)]
assert all(future.result(20) for future in futures)
producer.close()
end(f"{{len(offsets)}} stored, {{len(log.futures) > 50}}")
"""
    )
    assert "180 stored" in written, written
    assert "hangs" not in written
    assert call == "send" or "180 stored, True" in written


def test_a_message_may_be_submitted_at_every_line_of_the_client() -> None:
    """A signal handler runs between any two lines. Here one runs at each, once per line and thread."""
    written = run_watched(
        """
seen, futures, nested = set(), [], threading.local()
MODULES = ("lanemq.client", "lanemq.net", "lanemq.core.sending", "threading", "concurrent.futures")

def trace(frame, event, arg):
    if not str(frame.f_globals.get("__name__")).startswith(MODULES) or getattr(nested, "on", False):
        return None
    place = frame.f_code, frame.f_lineno, threading.current_thread().name
    if place not in seen:
        seen.add(place)
        nested.on = True
        try:
            futures.append(producer.submit("orders", len(futures), key="traced"))
        finally:
            nested.on = False
    return trace

producer.send("orders", 0, key="traced")
producer.close()
producer = Producer(broker.address, create=["orders"])
producer.send("orders", 0, key="traced")
threading.settrace(trace)
sys.settrace(trace)
for number in range(5):
    producer.submit("orders", number, key="k")
    producer.send("orders", number, key="k")
producer.send_many("orders", [("k", number) for number in range(5)])
producer.flush()
producer.frozen_keys(), producer.metrics(), producer.resume("orders"), producer.drop("orders", key="k")
sys.settrace(None)
threading.settrace(None)
offsets = [future.result(20).offset for future in futures]
end(f"{len(offsets) > 100} {offsets == sorted(offsets)}")
"""
    )
    assert "True True" in written, written


def test_a_send_that_could_never_be_answered_is_refused_at_once() -> None:
    written = run_watched(
        """
def nested():
    for call in (
        lambda: producer.send("orders", 1, key="k"),
        lambda: producer.send_many("orders", [("k", 1)]),
        lambda: producer.flush(),
        lambda: producer.metrics(),
        lambda: producer.drop("orders", key="k"),
    ):
        try:
            call()
        except UsageError as error:
            print(error)
    return producer.submit("orders", 2, key="k")

producer.send("orders", 0, key="k")
future = producer._locked(nested)
later = producer.submit("orders", 3, key="k")
end(f"{[future.result(5).offset, later.result(5).offset]}")
"""
    )
    assert written.count("finalizer or a signal handler") == 5, written
    assert "[1, 2]" in written, "in order"


def test_signal_handlers_that_log_through_a_producer_hang_nothing() -> None:
    written = run_watched(
        """
signal.signal(signal.SIGALRM, lambda *_: program_log.info("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
futures = [producer.submit("orders", number, key="k") for number in range(3000)]
for number in range(200):
    producer.send("orders", number, key="k")
signal.setitimer(signal.ITIMER_REAL, 0)
assert all(future.result(20) for future in (*futures, *log.futures))
end(f"fine {len(log.futures) > 20}")
"""
    )
    assert "fine True" in written, written


def test_a_submit_waits_for_no_thread_that_waits_for_a_log_handler() -> None:
    """One thread is inside the producer, and its signal handler waits for the lock of a logging handler. Another thread
    holds that lock and submits."""
    written = run_watched(
        """
class Shipped(Log):
    def emit(self, record):
        self.futures.append(self.producer.submit("logs", record.getMessage(), key="log", tag=record.levelname))

log = Shipped(producer, "submit")
program_log.handlers[:] = [log]
done = False

def logs():
    while not done:
        program_log.info("line")
        time.sleep(0)

threads = [threading.Thread(target=logs) for _ in range(2)]
for thread in threads: thread.start()
signal.signal(signal.SIGALRM, lambda *_: program_log.info("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
futures = [producer.submit("orders", number, key="k", tag="t") for number in range(3000)]
signal.setitimer(signal.ITIMER_REAL, 0)
done = True
for thread in threads: thread.join()
offsets = [future.result(20).offset for future in futures]
assert all(future.result(20) for future in log.futures)
end(f"fine {offsets == sorted(offsets)} {len(log.futures) > 100}")
"""
    )
    assert "fine True True" in written, written
