"""`lanemq console` and `lanemq up`: one set of options, and settings that say where they came from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from tests.cli.conftest import Run

from lanemq.cli.errors import CliError
from lanemq.cli.server.broker import broker as broker_command
from lanemq.cli.server.console import console, console_options
from lanemq.cli.server.up import UpParts, _start_pipeline, announce, up
from lanemq.console.settings import ConsoleSettings
from lanemq.testing import EmbeddedBroker


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ConsoleSettings]:
    """The settings of every console that was started. None is served."""
    found: list[ConsoleSettings] = []
    monkeypatch.setattr("lanemq.console.server.serve", lambda settings, *_: found.append(settings))
    return found


def test_settings_name_the_variable_and_the_flag_that_they_came_from(
    run: Run, broker: EmbeddedBroker, served: list[ConsoleSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ("console", "--listen", "127.0.0.1:0")
    assert run(*start).exit_code == 0  # the fixture sets LANEMQ_SERVER
    assert run(*start, "--server", broker.address).exit_code == 0
    monkeypatch.delenv("LANEMQ_SERVER")
    assert run(*start, "--every", "3s").exit_code == 0
    assert [each.server for each in served] == [broker.address] * 2 + ["localhost:9876"]
    assert [each.origins["server"] for each in served] == ["environment LANEMQ_SERVER", "command line", "default"]
    assert {name: served[2].origins[name] for name in ("listen", "every", "history")} == {
        "listen": "command line", "every": "command line", "history": "default",
    }  # fmt: skip


def test_the_address_is_the_one_that_port_zero_became(
    run: Run, broker: EmbeddedBroker, served: list[ConsoleSettings]
) -> None:
    assert run("console", "--listen", "127.0.0.1:0").exit_code == 0
    host, _, port = served[0].listen.rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


GIVEN = {
    "open_page": ("--open", True),
    "every": ("--every=1500ms", 1.5),
    "history": ("--history=-h", Path("-h")),
    "pipelines": ("--pipeline=orders.toml --pipeline=-c", (Path("orders.toml"), Path("-c"))),
    "spark_page": ("--spark-page=http://localhost:4040", "http://localhost:4040"),
    "remote_writes": ("--remote-writes", True),
    "allow_hosts": ("--allow-host=ops.example --allow-host=b", ("ops.example", "b")),
}


class Started(Exception):
    """The parts that `lanemq up` would have started."""


def parts_of(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, click.Context]:
    """How broker and console would read the arguments that `lanemq up` starts them with."""
    found: dict[str, click.Context] = {}
    commands = {"broker": broker_command, "console": console}

    def start(self: UpParts, name: str, module: str, command: str, *arguments: str, **_: object) -> None:
        found[name] = commands[command].make_context(command, list(arguments))
        if name == "console":
            raise Started

    monkeypatch.setattr(UpParts, "start", start)
    monkeypatch.setattr(UpParts, "address", lambda self, name: "127.0.0.1:9876")
    with pytest.raises(Started):
        up.main([*words, "--listen=127.0.0.1:0", "--console=127.0.0.1:0"], standalone_mode=False)
    return found


def test_up_passes_every_option_of_the_console(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @click.command()
    @console_options
    def all_options(**_: Any) -> None: ...

    assert {each.name for each in all_options.params} == set(GIVEN)
    monkeypatch.chdir(tmp_path)
    words = [word for flags, _ in GIVEN.values() for word in flags.split()]
    parts = parts_of(words, monkeypatch)
    passed = parts["console"].params
    assert {name: passed[name] for name in GIVEN if name != "open_page"} == {
        name: value for name, (_, value) in GIVEN.items() if name != "open_page"
    }
    assert passed["open_page"] is False  # `up` itself opens the page, when all parts run
    assert parts["broker"].params["history"] == Path("-h")


def test_what_up_is_not_given_stays_the_default_of_the_console(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    context = parts_of([], monkeypatch)["console"]
    by_flag = {name for name in GIVEN if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT}
    assert by_flag == set()


def test_up_waits_for_the_token_of_the_console_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The console writes two lines, and people sign in with the second. `up` may read the file between them."""
    parts = UpParts(tmp_path)
    log = parts.log("console")
    log.write_text("LaneMQ console on http://127.0.0.1:1/ for 127.0.0.1:2\n")

    def write_the_rest(seconds: float) -> None:
        with log.open("a") as out:
            out.write("token for changes: secret\n")

    monkeypatch.setattr("lanemq.cli.server.up.time.sleep", write_the_rest)
    assert parts.address("console") == "http://127.0.0.1:1/"
    assert "secret" in log.read_text()


def test_up_passes_the_address_of_the_metrics_to_the_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    context = parts_of(["--monitor", "127.0.0.1:1"], monkeypatch)["broker"]
    assert context.params["monitor"] == "127.0.0.1:1"
    context = parts_of([], monkeypatch)["broker"]
    assert context.get_parameter_source("monitor") is click.core.ParameterSource.DEFAULT


@pytest.mark.parametrize(
    ("said", "metrics"),
    [
        ("data in x, monitor on http://127.0.0.1:9880", "http://127.0.0.1:9880/metrics"),
        (
            "data in x, no monitor: 127.0.0.1:9880 is in use",
            "none: 127.0.0.1:9880 is in use; choose another address with --monitor",
        ),
        ("data in x, no monitor", "off"),
    ],
)
def test_up_says_where_the_metrics_are_or_why_there_are_none(
    said: str, metrics: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = UpParts(tmp_path)
    parts.log("broker").write_text(f"LaneMQ 0.1.0 on 127.0.0.1:1, durable, {said}\n")
    parts.log("console").write_text("token for changes: secret\n")
    announce(parts, "http://127.0.0.1:2/", "127.0.0.1:1")
    assert f"metrics  {metrics}\n" in capsys.readouterr().out


def test_up_names_the_signal_that_ended_a_part_and_not_the_last_line_of_its_log(tmp_path: Path) -> None:
    parts = UpParts(tmp_path)
    parts.start("broker", "timeit", "-n", "1", "-s", "import time", "time.sleep(60)")
    parts.log("broker").write_text("WARNING key 'order-287' is parked\n")
    parts.running["broker"].kill()
    parts.running["broker"].wait()
    with pytest.raises(CliError, match=r"the broker was ended by SIGKILL; its log is .*broker\.log"):
        parts.check()
    parts.stop()


def test_the_end_of_the_demonstrations_pipeline_is_reported_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = UpParts(tmp_path, optional={"pipeline"})
    parts.start("pipeline", "timeit", "-n", "1", "-r", "1", "pass")
    parts.running["pipeline"].wait()
    parts.log("pipeline").write_text("Error: this Java is too old\n")
    parts.check()
    parts.check()
    said = "the pipeline ended: this Java is too old; everything else keeps running\n"
    assert (capsys.readouterr().out, parts.running) == (said, {})
    parts.stop()


@pytest.mark.parametrize(("spark", "java"), [(True, ""), (False, "/java")])
def test_without_spark_or_java_the_demonstration_says_why_it_has_no_pipeline(
    spark: bool, java: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lanemq.cli.server.up.find_spec", lambda name: object() if spark else None)
    monkeypatch.setattr("lanemq.cli.server.up.shutil.which", lambda name: None)
    monkeypatch.setenv("JAVA_HOME", java)
    parts = UpParts(tmp_path)
    assert _start_pipeline(parts, "127.0.0.1:1", tmp_path) == []
    assert (parts.running, "the extra spark, and Java 17" in capsys.readouterr().out) == ({}, True)
    parts.stop()


def test_a_private_key_that_every_user_may_read_is_a_warning_at_the_start(
    run: Run, broker: EmbeddedBroker, served: list[ConsoleSettings], tmp_path: Path
) -> None:
    cert, key = tmp_path / "console.pem", tmp_path / "console.key"
    for path in (cert, key):
        path.touch(mode=0o644)
        path.chmod(0o644)
    started = run("console", "--listen", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key))
    assert started.exit_code == 0
    assert f"chmod 600 {key}" in started.stderr
