"""The `lanemq` command: help, version, exit codes, and a broker in its own process."""

import asyncio
import errno
import io
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result

from lanemq.broker.app import Broker
from lanemq.broker.config import BrokerOptions
from lanemq.cli.errors import CliError
from lanemq.cli.main import COMMANDS, main
from lanemq.cli.server.serving import start, start_failed
from lanemq.model.environment import install_extra
from lanemq.model.errors import DiskFull, WriteFailed

LANEMQ = [sys.executable, "-m", "lanemq.cli.main"]
ASKING = [
    ("topic", "create", "t"),
    ("topic", "list"),
    ("topic", "describe", "t"),
    ("topic", "delete", "t", "--yes"),
    ("send", "t", "x"),
    ("tail", "t"),
    ("group", "list"),
    ("group", "describe", "g"),
    ("group", "reset", "g", "--topic", "t", "--to", "last"),
    ("locks",),
    ("key", "k", "--topic", "t"),
]


def lanemq(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def test_the_list_of_commands_says_what_each_command_says() -> None:
    context = click.Context(main)
    found = {name: main.get_command(context, name) for name in COMMANDS}
    assert {name: command and command.get_short_help_str(200) for name, command in found.items()} == {
        name: command.help for name, command in COMMANDS.items()
    }


def test_python_m_lanemq_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "lanemq", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"lanemq, version {version('lanemq')}")


def test_the_shell_completes_commands_and_options() -> None:
    shell = BashComplete(main, {}, "lanemq", "_LANEMQ_COMPLETE")
    assert [each.value for each in shell.get_completions([], "par")] == ["parked"]
    assert [each.value for each in shell.get_completions(["topic"], "de")] == ["describe", "delete"]
    assert "--properties" in [each.value for each in shell.get_completions(["tail"], "--p")]


def test_a_misspelt_command_is_answered_with_the_nearest() -> None:
    assert "Did you mean 'topic'?" in lanemq("topc").stderr
    assert "Did you mean 'list'?" in lanemq("topic", "lst").stderr
    assert "Did you mean 'delete'?" in lanemq("topic", "rm", "orders").stderr
    assert "Did you mean 'describe'?" in lanemq("topic", "show", "orders").stderr
    assert "Did you mean 'dead'?" in lanemq("dlq").stderr
    assert "To run handlers: 'lanemq run'." in lanemq("consume").stderr
    assert lanemq("topc").exit_code == 2
    assert "Parked lanes: 'lanemq parked redrive'" in lanemq("redrive").stderr


@pytest.mark.parametrize("words", [(), ("topic",), ("topic", "create")], ids=" ".join)
def test_help_is_also_a_command(words: tuple[str, ...]) -> None:
    assert lanemq("help", *words).stdout == lanemq(*words, "--help").stdout != ""
    assert lanemq("help", *words).exit_code == 0
    assert "Did you mean 'topic'?" in lanemq("help", "topc").stderr


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple["subprocess.Popen[str]", str, Path]]:
    """`lanemq broker` in its own process; its first line contains the address."""
    data = tmp_path_factory.mktemp("broker") / "new" / "data"
    history = data.parent / "history"
    command = [*LANEMQ, "broker", "--listen", "127.0.0.1:0", "--data", str(data), "--history", str(history)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        first = running.stderr.readline()
        found = re.fullmatch(r"LaneMQ \S+ on (127\.0\.0\.1:\d+), durable, data in (\S+), (?:no )?monitor.*\n", first)
        assert found is not None, first
        yield running, found[1], data
        if running.poll() is None:
            running.kill()


def test_help_lists_exit_codes_and_commands() -> None:
    output = lanemq("--help").stdout
    assert "Exit codes: 0 success, 1 refused or failed, 2" in " ".join(output.split())
    for command in ("broker", "topic", "send", "tail", "group", "locks", "key", "check"):
        assert re.search(rf"^  {command} ", output, re.MULTILINE), command


def test_version_is_that_of_the_package() -> None:
    assert version("lanemq") in lanemq("--version").stdout


class FailingFile(io.RawIOBase):
    """A file that takes nothing as long as it has an error."""

    def __init__(self, error: int) -> None:
        self.error = error

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return len(data)


def lanemq_with_failing_stdout(error: int, words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Runs a command, and returns its exit code."""
    raw = FailingFile(error)
    stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as ended:
            main(list(words), prog_name="lanemq")
    raw.error = 0
    stream.close()
    return ended.value.code


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EPIPE])
@pytest.mark.parametrize("words", [("--help",), ("--version",), ("help", "topic"), ("broker", "--help")])
def test_output_that_cannot_be_written_is_one_line_and_an_exit_code(
    error: int, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line if the reader of a pipe has ended: `lanemq --help | head` is no mistake.

    The help of the broker is longer than the buffer of a stream, which then has nothing left that would fail again.
    """
    assert lanemq_with_failing_stdout(error, words, monkeypatch) == 1
    line = f"Error: the output cannot be written: {os.strerror(error)}\n"
    assert capsys.readouterr().err == ("" if error == errno.EPIPE else line)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EPIPE])
def test_a_verdict_that_cannot_be_written_is_unknown(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 would say that an order was broken."""
    turns = '{"e":"turn","n":1,"t":2,"group":"g","topic":"t","queue":0,"offset":0,"key":"k"}'
    (tmp_path / "a.jsonl").write_text(f'{{"e":"begin","n":0,"t":1,"name":"a"}}\n{turns}\n')
    assert lanemq("check", str(tmp_path)).exit_code == 0
    assert lanemq_with_failing_stdout(error, ("check", str(tmp_path)), monkeypatch) == 2
    assert capsys.readouterr().err == f"Error: the report cannot be written: {os.strerror(error)}\n"


def test_an_error_that_is_not_about_the_output_is_not_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a fault of the program keeps its traceback."""
    fault = OSError(errno.ENOSPC, "No space left on device")

    def fail(*args: object) -> None:
        raise fault

    monkeypatch.setattr("lanemq.cli.main.end_with_parent", fail)
    with pytest.raises(OSError, match="No space left") as raised:
        main(["topic", "list"], prog_name="lanemq")
    assert raised.value is fault


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is always full")
def test_the_interpreter_does_not_try_to_write_it_again_at_its_end() -> None:
    """It would print a second error, and end with exit code 120."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lanemq", "--version"], stdout=full, stderr=subprocess.PIPE, env=buffered
        )
    assert (done.returncode, done.stderr.decode().splitlines()) == (
        1,
        ["Error: the output cannot be written: No space left on device"],
    )


def test_unknown_command_is_a_usage_error() -> None:
    assert lanemq("fly").exit_code == 2


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_every_command_reports_a_missing_broker_in_one_line(words: tuple[str, ...]) -> None:
    result = lanemq(*words, "--server", "127.0.0.1:1", "--json")
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.stderr
    assert "lanemq broker --data DIR" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_every_command_refuses_a_bad_address_as_usage(words: tuple[str, ...]) -> None:
    result = lanemq(*words, "--server", "host:port")
    assert result.exit_code == 2
    assert "write host:port" in result.stderr


def test_broker_in_a_process_of_its_own_serves_commands(process: tuple[object, str, Path]) -> None:
    environment = {**os.environ, "LANEMQ_SERVER": process[1]}

    def run(*words: str) -> str:
        done = subprocess.run([*LANEMQ, *words], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("topic", "create", "smoke", "--ordered")
    run("send", "smoke", "hello", "--key", "a")
    assert "hello" in run("tail", "smoke")


def test_broker_writes_its_history_to_the_given_folder(process: tuple[object, str, Path]) -> None:
    (written,) = (process[2].parent / "history").iterdir()
    assert '"role":"broker"' in written.read_text()


def test_a_history_folder_that_is_not_writable_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    data, history = str(tmp_path / "data"), str(tmp_path / "file" / "history")
    result = lanemq("broker", "--listen", "127.0.0.1:0", "--data", data, "--history", history)
    assert result.exit_code == 1
    assert str(tmp_path / "file") in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_second_broker_on_the_same_data_is_refused(process: tuple[object, str, Path]) -> None:
    result = lanemq("broker", "--listen", "127.0.0.1:0", "--data", str(process[2]))
    assert result.exit_code == 1
    assert "used by another broker" in result.stderr
    assert "start this one with another data folder" in result.stderr


def test_a_port_in_use_is_reported_with_advice(process: tuple[object, str, Path], tmp_path: Path) -> None:
    result = lanemq("broker", "--listen", process[1], "--data", str(tmp_path))
    assert result.exit_code == 1
    assert f"cannot listen on {process[1]}: another program uses this port" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("broker", "--listen", "USED"),
        ("broker", "--listen", "127.0.0.1:0", "--monitor", "USED"),
        ("broker", "--listen", "127.0.0.1:0", "--users", "missing.toml"),
        ("broker", "--listen", "127.0.0.1:0", "--tls-cert", "missing.pem"),
        ("up", "--listen", "USED", "--console", "127.0.0.1:0"),
        ("up", "--listen", "127.0.0.1:0", "--console", "USED"),
    ],
    ids=["port", "monitor", "users", "certificate", "broker of up", "console of up"],
)
def test_a_refused_start_leaves_no_folder(
    process: tuple[object, str, Path], tmp_path: Path, words: tuple[str, ...]
) -> None:
    result = lanemq(*(process[1] if word == "USED" else word for word in words), "--data", str(tmp_path / "a" / "b"))
    assert result.exit_code in (1, 2)
    assert len(result.stderr.splitlines()) == 1
    assert [*tmp_path.iterdir()] == []


def test_control_without_the_check_a_refused_start_leaves_a_folder(
    process: tuple[object, str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.cli.server.serving.check_start", lambda options: None)
    assert lanemq("broker", "--listen", process[1], "--data", str(tmp_path / "a")).exit_code == 1
    assert (tmp_path / "a").exists()


def test_a_missing_extra_is_reported_before_a_port_in_use(
    process: tuple[object, str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.cli.server.console.PACKAGES", ("starlette", "not_there"))
    result = lanemq("up", "--listen", process[1], "--data", str(tmp_path / "a"))
    assert result.exit_code == 1
    assert result.stderr == f"Error: the console needs not_there: {install_extra('console')}\n"
    assert not (tmp_path / "a").exists()


def test_a_broker_that_does_not_start_restores_signal_handlers(process: tuple[object, str, Path]) -> None:
    """Consumers in the same process install their SIGTERM handler only if there is no other."""
    found = signal.signal(signal.SIGINT, lambda *_: None)  # as Spark's driver does
    try:
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        assert lanemq("broker", "--listen", "127.0.0.1:0", "--data", str(process[2])).exit_code == 1
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    finally:
        signal.signal(signal.SIGINT, found)


def test_terminated_broker_stops_cleanly(process: tuple["subprocess.Popen[str]", str, Path]) -> None:
    running = process[0]
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 0


def test_data_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = lanemq("broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert "cannot be created" in result.stderr


def test_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    result = lanemq("broker", "--listen", "192.0.2.1:9876", "--data", str(tmp_path))
    assert result.exit_code == 1
    warning, error = result.stderr.splitlines()
    assert "every client may do everything (see --users)" in warning
    assert "connections are not encrypted (see --tls-cert)" in warning
    assert "this machine does not have this address" in error


def test_loopback_needs_no_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for listen in ("127.0.0.1:0", "localhost:0", "[::1]:0"):
        result = lanemq("broker", "--listen", listen, "--data", str(tmp_path), "--retention", "-1")
        assert result.exit_code == 2, "the option is refused before anything is started"
        assert "'-1' is not a duration" in result.stderr
        assert "warning" not in result.stderr


@pytest.mark.parametrize("kind", [socket.gaierror, OSError], ids=["asyncio", "uvloop"])
def test_an_unknown_host_is_reported(tmp_path: Path, kind: type[OSError]) -> None:
    error = start_failed(kind(socket.EAI_NONAME, "Name or service not known"), BrokerOptions(tmp_path))
    assert "unknown host" in str(error)
    assert "Errno" not in str(error)


def test_a_file_that_cannot_be_opened_is_not_a_port_that_needs_privileges(tmp_path: Path) -> None:
    options = BrokerOptions(tmp_path)
    file = start_failed(PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "lock")), options)
    assert f"{tmp_path / 'lock'}: Permission denied; this user must be able to write" in str(file)
    assert "1024" not in str(file)
    port = start_failed(PermissionError(errno.EACCES, "Permission denied"), options)
    assert "ports below 1024 need privileges" in str(port)


@pytest.mark.parametrize("noticed_by", ["state", "indexes"])
def test_a_start_on_a_full_disk_says_that_space_must_be_freed(tmp_path: Path, noticed_by: str) -> None:
    """Whatever notices it first; the advice for a running broker does not help here."""

    class OnFullDisk(Broker):
        async def start(self) -> None:
            if noticed_by == "state":
                raise DiskFull("no space left for state.db: free some, and writing continues")
            raise WriteFailed("a restart rebuilds the indexes") from OSError(errno.ENOSPC, "No space left on device")

    options = BrokerOptions(tmp_path)
    with pytest.raises(CliError, match=f"the disk of {tmp_path} is full: free some space, then start again"):
        asyncio.run(start(OnFullDisk(options), options))


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("topic", "create", "o", "--partitions", "8"), "--queues"),
        (("topic", "list", "--bootstrap-server", "localhost:9092"), "--server"),
        (("group", "reset", "g", "--topic", "t", "--to-earliest"), "--to"),
        (("send", "o", "hi", "--sharding-key", "a"), "--key"),
    ],
)
def test_an_option_of_other_systems_leads_to_the_one_that_exists(words: tuple[str, ...], meant: str) -> None:
    result = lanemq(*words)
    assert result.exit_code == 2
    assert f"Did you mean {meant}" in result.stderr.replace("'", "")


def test_an_argument_that_is_written_as_an_option_is_named() -> None:
    for option in ("--key", "--message-key"):
        result = lanemq("parked", "redrive", option, "order-43", "--group", "billing")
        assert result.exit_code == 2
        assert result.stderr.endswith(f"No such option '{option}'. KEY is an argument: leave out {option}.\n")


@pytest.mark.parametrize("address", ["99999", "localhost:98760"])
def test_a_port_that_cannot_exist_is_not_suggested(address: str) -> None:
    result = lanemq("topic", "list", "--server", address)
    assert result.exit_code == 2
    assert result.stderr.endswith(f"'{address}': ports are numbers from 0 to 65535\n")
