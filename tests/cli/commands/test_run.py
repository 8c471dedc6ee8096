"""`lanemq run`: finding the app, several workers, restarts, and changed files."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.client.consumer.with_broker import wait_for

from lanemq import Producer
from lanemq.cli.commands.run import Supervisor, changed_files, load_app, syntax_problem
from lanemq.cli.main import main
from lanemq.cli.options import WrongUsage
from lanemq.client.admin.admin import Admin
from lanemq.testing.embedded import EmbeddedBroker

APP = """
import os
from lanemq import App

app = App("{server}", group="{group}")

@app.ordered("orders")
def on_order(event: dict) -> None:
    with open("handled.txt", "a") as file:
        file.write(f"{{os.getpid()}} {{event['n']}} {mark}\\n")

number = 5
"""


@pytest.fixture(autouse=True)
def _same_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        if name.startswith("shop_"):
            del sys.modules[name]


def write(folder: Path, mark: str = "first", server: str = "localhost:1", group: str = "g") -> None:
    (folder / "shop_app.py").write_text(APP.format(server=server, group=group, mark=mark))


def test_the_app_is_found_by_module_and_name(tmp_path: Path) -> None:
    write(tmp_path)
    assert load_app("shop_app:app", tmp_path) is load_app("shop_app", tmp_path)


RUNNING = """
import asyncio
from lanemq import App

app = App("localhost:1", group="g")
{call}
"""


@pytest.mark.parametrize("call", ["app.run()", "asyncio.run(app.run_async())"])
def test_an_app_that_runs_when_it_is_imported_is_refused_with_what_to_do(tmp_path: Path, call: str) -> None:
    (tmp_path / "shop_runs.py").write_text(RUNNING.format(call=call))
    result = CliRunner().invoke(main, ["run", "shop_runs:app", "--folder", str(tmp_path)])
    assert result.exit_code == 2
    assert re.match(r"Error: module 'shop_runs' calls app.run(_async)?\(\) while it is imported", result.stderr)
    assert "`lanemq run shop_runs:app` and tests start the app themselves" in result.stderr


def test_a_test_file_that_runs_its_app_is_an_error_of_its_collection(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(RUNNING.format(call="app.run()"))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "test_shop.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout
    assert "UsageError: module 'test_shop' calls app.run() while it is imported" in done.stdout


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("shop_missing:app", "there is no module 'shop_missing'"),
        ("shop_app:number", "it has app"),
        ("shop_app:other", "'other' in module 'shop_app' is not an App"),
        ("./shop_app.py", "is a file, .* write lanemq run shop_app:app$"),
        ("shop_app.py:other", "write lanemq run shop_app:other$"),
        ("src/shop_app.py", "write lanemq run shop_app:app --folder src$"),
        (":app", "write MODULE:APP"),
        ("shop_app:", "write MODULE:APP"),
    ],
)
def test_a_wrong_target_is_explained(target: str, why: str, tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(WrongUsage, match=why):
        load_app(target, tmp_path)


def test_a_wrong_target_is_a_wrong_command_line(tmp_path: Path) -> None:
    assert CliRunner().invoke(main, ["run", "shop_missing:app", "--folder", str(tmp_path)]).exit_code == 2


def test_an_error_in_the_module_is_shown_without_the_frames_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "shop_broken.py").write_text("def price():\n    return nonsense\n\nprice()\n")
    result = CliRunner().invoke(main, ["run", "shop_broken:app", "--folder", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr.startswith("Traceback (most recent call last)")
    assert re.findall(r'File "(.*)", line', result.stderr) == [str(tmp_path / "shop_broken.py")] * 2
    last = ["NameError: name 'nonsense' is not defined", "Error: module 'shop_broken' cannot be imported"]
    assert result.stderr.splitlines()[-2:] == last


def test_changes_of_python_files_are_seen_and_no_others(tmp_path: Path) -> None:
    folders = ("pack", ".venv", "node_modules")
    for name in folders:
        (tmp_path / name).mkdir()
    stop = threading.Event()
    changes = changed_files(tmp_path, stop)
    assert next(changes) == [], "nothing changed, and the workers are looked after"
    for path in ("c.txt", ".venv/e.py", "node_modules/f.py", "pack/b.py"):
        (tmp_path / path).touch()
    seen = next(found for found in changes if found)
    assert seen == [tmp_path / "pack" / "b.py"]
    (tmp_path / "pack" / "b.py").unlink()
    assert next(found for found in changes if found) == [tmp_path / "pack" / "b.py"]
    stop.set()
    assert list(changes) == []


def test_a_syntax_error_is_found_before_workers_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "shop.py"
    assert syntax_problem(path) is None
    path.write_text("def on_order(event):\n    return (\n")
    assert re.search(r"shop\.py cannot be imported: .*line 2", syntax_problem(path) or "")
    path.write_text("x = 1\n")
    assert syntax_problem(path) is None


WORKER = "echo started >> {0}; trap 'exit 0' TERM; while :; do sleep 0.05; done"


@pytest.mark.slow
def test_workers_are_started_again_when_they_end_or_a_file_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, code = tmp_path / "log", tmp_path / "code.py"
    log.touch()
    code.touch()
    supervisor = Supervisor(["sh", "-c", WORKER.format(log)], 2, tmp_path)

    def operate() -> None:
        def starts() -> int:
            return len(log.read_text().splitlines())

        try:
            wait_for(lambda: starts() == 2)
            os.kill(supervisor.processes()[0], signal.SIGKILL)
            wait_for(lambda: starts() == 3)
            code.write_text("def broken(:\n")
            wait_for(lambda: "cannot be imported" in capsys.readouterr().err)
            assert starts() == 3
            code.write_text("")
            wait_for(lambda: starts() == 5)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as thread:
        operating = thread.submit(operate)
        assert supervisor.run() == 0
        operating.result()
    assert supervisor.processes() == []


@pytest.mark.parametrize(
    ("worker", "failed"),
    [("touch ready; exec sleep 600", 0), ("trap 'exit 3' TERM; touch ready; while :; do sleep 0.02; done", 1)],
)
def test_a_worker_that_is_stopped_before_it_has_handlers_did_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: str, failed: int
) -> None:
    monkeypatch.chdir(tmp_path)
    supervisor = Supervisor(["sh", "-c", worker], 1, None)

    def stop() -> None:
        wait_for((tmp_path / "ready").exists)
        os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as thread:
        stopping = thread.submit(stop)
        assert supervisor.run() == failed
        stopping.result()


@pytest.mark.extended
def test_workers_share_the_work_restart_and_take_over_changes(broker: EmbeddedBroker, tmp_path: Path) -> None:
    write(tmp_path, server=broker.address, group="run-workers")
    handled = tmp_path / "handled.txt"
    handled.touch()
    words = [sys.executable, "-m", "lanemq.cli.main", "run", "shop_app:app", "--workers", "2", "--reload"]
    with (
        Producer(broker.address, create="orders") as producer,
        subprocess.Popen([*words, "--log-level", "error"], cwd=tmp_path) as watching,
    ):
        try:
            produce_until(producer, lambda: len(processes(handled)) == 2)
            os.kill(int(next(iter(processes(handled)))), signal.SIGKILL)
            produce_until(producer, lambda: len(processes(handled)) >= 3)
            write(tmp_path, "second", broker.address, "run-workers")
            produce_until(producer, lambda: " second" in handled.read_text())
        finally:
            watching.send_signal(signal.SIGTERM)
        assert watching.wait(60) == 0


def processes(handled: Path) -> set[str]:
    return {line.split()[0] for line in handled.read_text().splitlines() if line.count(" ") == 2}


def produce_until(producer: Producer, true: Callable[[], bool]) -> None:
    def look() -> bool:
        producer.send_many("orders", [(f"key-{n}", {"n": n}) for n in range(32)])
        return true()

    wait_for(look)


def fetched(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    return number


@pytest.mark.slow
def test_workers_with_one_monitor_answer_at_its_address(broker: EmbeddedBroker, tmp_path: Path, port: int) -> None:
    write(tmp_path, server=broker.address, group="run-monitored")
    app = tmp_path / "shop_app.py"
    app.write_text(app.read_text().replace('"run-monitored"', f'"run-monitored", monitor="127.0.0.1:{port}"'))
    words = [sys.executable, "-m", "lanemq.cli.main", "run", "shop_app:app", "--workers", "2"]
    handled = tmp_path / "handled.txt"
    handled.touch()
    with (
        Producer(broker.address, create="orders") as producer,
        subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as watching,
    ):
        try:
            wait_for(lambda: fetched(port, "/ready")[0] == 200)
            produce_until(producer, lambda: len(processes(handled)) == 2)
            text = fetched(port, "/metrics")[1]
            for worker in "01":
                assert re.search(
                    rf'lanemq_consumer_queues{{group="run-monitored",topic="orders",worker="{worker}"}} \d', text
                )
                assert re.search(rf'lanemq_consumer_handler_seconds_count{{.*worker="{worker}"}} [1-9]', text)
                assert re.search(rf'process_cpu_seconds_total{{worker="{worker}"}}', text)
            assert text.count("# TYPE lanemq_consumer_handler_seconds histogram") == 1
            assert fetched(port, "/live") == (200, '{"live": true, "reasons": []}\n')
            frozen = int(next(iter(processes(handled))))
            os.kill(frozen, signal.SIGSTOP)
            status, reasons = fetched(port, "/ready")
            assert (status, "does not answer" in reasons) == (503, True)
            os.kill(frozen, signal.SIGKILL)
            wait_for(lambda: fetched(port, "/ready")[0] == 200)
            assert len(processes(handled)) >= 2
        finally:
            watching.send_signal(signal.SIGTERM)
        said = watching.communicate(timeout=60)[1]
    assert watching.returncode == 0
    assert said.count(f"metrics of all workers on http://127.0.0.1:{port}/metrics") == 1
    assert "in use" not in said
    assert re.search(rf"^worker [01] \(process {frozen}\) was killed by signal 9; another starts ", said, re.M)
    for worker in "01":
        assert re.search(rf"^worker {worker} \d{{4}}-.* queues are for this member", said, re.M), said


@pytest.mark.slow
def test_workers_whose_monitor_is_taken_are_not_started(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A group of the same name runs elsewhere, perhaps: nobody may take queues from it before the error is known."""
    write(tmp_path, server=broker.address, group="run-taken")
    app = tmp_path / "shop_app.py"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        app.write_text(app.read_text().replace('"run-taken"', f'"run-taken", monitor="{address}"'))
        words = [sys.executable, "-m", "lanemq.cli.main", "run", "shop_app:app", "--workers", "2"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: cannot listen on {address}: another program uses this port: stop it, or choose another port with "
        "monitor=\n"
    )
    with Admin(broker.address) as admin:
        assert "run-taken" not in admin.groups()
