"""Options from a file, the environment and flags: the right one wins, and nothing is ignored."""

import json
import logging
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.certificates import Authority

from lanemq.broker.config import BrokerOptions
from lanemq.cli.errors import CliError
from lanemq.cli.main import main
from lanemq.cli.output import LogFormat, log_to_stderr
from lanemq.cli.server import serving
from lanemq.cli.server.broker import broker
from lanemq.cli.settings import option_names
from lanemq.net.address import Address


def shown(*flags: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["config", "show", "--json", "--data", "d", *flags], env=env)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lanemq.toml"
    path.write_text('[broker]\nlisten = "127.0.0.1:1"\nretention = "2h"\nmax-connections = 5\nrelaxed = true\n')
    return path


def test_flags_win_over_the_environment_and_that_over_the_file(file: Path) -> None:
    variables = {"LANEMQ_BROKER_RETENTION": "3h", "LANEMQ_BROKER_MAX_CONNECTIONS": "6"}
    result = shown("--config", str(file), "--max-connections", "7", env=variables)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    expected = {
        "listen": {"value": "127.0.0.1:1", "source": "file"},
        "relaxed": {"value": True, "source": "file"},
        "retention": {"value": 10800.0, "source": "environment"},
        "max_connections": {"value": 7, "source": "command line"},
        "default_queues": {"value": 8, "source": "default"},
    }
    assert {name: found[name] for name in expected} == expected
    named = shown(env={"LANEMQ_BROKER_CONFIG": str(file)})
    assert json.loads(named.stdout)["listen"]["source"] == "file"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('[broker]\nlisen = "x"\n', "lisen is not an option; did you mean listen?"),
        ("[brocker]\n", "brocker is not a table [broker]; did you mean broker?"),
        ("[broker]\nretention = [1]\n", "retention must be text, a number, true or false"),
        ("[broker\n", "is not valid TOML"),
        ("[broker]\nmax-connections = true\n", "max_connections must be a value, not true"),
        ("[broker]\nusers = false\n", "users must be a value, not false"),
        ("[broker]\nmax-body-bytes = 1\nmax_body_bytes = 2\n", "max_body_bytes is given twice"),
        ('[broker]\nretention = "soon"\n', "'soon' is not a duration"),
        ('[broker]\nretention-bytes = "50 GB"\n', "It is in the file "),
        ('[broker]\ndata = ""\n', "data is empty; give it a value, or remove it"),
        ("[broker]\nmax-connections = -3\n", "max_connections=-3 must be at least 1"),
        ("[broker]\ndefault-queues = 1025\n", "default_queues=1025 must be at most 1024: a topic has no more queues"),
        ('[broker]\nlisten = "9876"\n', "is a port without a host"),
        ('[broker]\ntls-key = "key.pem"\n', "--tls-mode need --tls-cert"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "lanemq.toml"
    path.write_text(text)
    result = shown("--config", str(path))
    assert result.exit_code == 2
    assert error in result.output


def test_an_unknown_variable_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    result = shown(env={"LANEMQ_BROKER_LISTN": "x"})
    assert result.exit_code == 2
    assert "did you mean LANEMQ_BROKER_LISTEN?" in result.output
    assert "cannot be read" in shown("--config", str(tmp_path / "none.toml")).output


def test_a_wrong_value_is_reported_with_its_place() -> None:
    result = shown(env={"LANEMQ_BROKER_MAX_CONNECTIONS": "many"})
    assert "It is in the environment, as LANEMQ_BROKER_MAX_CONNECTIONS." in result.output
    assert "It is in" not in shown("--max-connections", "many").output


def test_an_empty_variable_is_refused_and_does_not_mean_the_default() -> None:
    """An empty name of the users' file would start a broker that allows everything."""
    for start in (["broker"], ["config", "show"]):
        result = CliRunner().invoke(main, [*start, "--data", "d"], env={"LANEMQ_BROKER_USERS": ""})
        assert result.exit_code == 2
        assert "LANEMQ_BROKER_USERS is empty; give it a value, or remove it" in result.output


def test_values_have_units_and_zero_says_what_it_stands_for() -> None:
    """Without `--data` too: nothing is started."""
    result = CliRunner().invoke(main, ["config", "show"], prog_name="lanemq")
    assert result.exit_code == 0, result.output
    values = {line.split()[0]: " ".join(line.split()[1:]) for line in result.stdout.splitlines()[2:] if line.split()}
    expected = {
        "retention": "72h default",
        "retention-bytes": "0: three quarters of the disk default",
        "segment-bytes": "268435456 (256.0 MiB) default",
        "data": "not given; the broker needs it default",
    }
    assert {name: values[name][: len(text)] for name, text in expected.items()} == expected


def test_a_mistake_names_the_command_that_was_given() -> None:
    result = CliRunner().invoke(main, ["config", "show", "--retention", "soon"], prog_name="lanemq")
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: lanemq config show ")


def test_only_a_chosen_monitor_counts_as_set(tmp_path: Path) -> None:
    used = Address("127.0.0.1", 9880)
    by_default = BrokerOptions(tmp_path, monitor=used, monitor_required=False)
    assert by_default.shown({"monitor": "off"})["monitor"] == ("off", "")
    assert BrokerOptions(tmp_path, monitor=used).shown({})["monitor"] == (str(used), "set at its start")


def test_every_option_of_a_broker_can_be_set() -> None:
    """`monitor_required` and `origins` follow from how the others were chosen."""
    other_names = {"durable": "relaxed", "auto_create_topics": "no_auto_create", "tls": "tls_cert"}
    known = option_names(broker)
    options = [each.name for each in fields(BrokerOptions) if each.name not in ("monitor_required", "origins")]
    named = [other_names.get(name, name) for name in options]
    assert [name for name in named if name not in known] == []


def test_a_json_log_has_one_line_per_event(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    log_to_stderr("INFO", LogFormat.JSON)
    try:
        raise ValueError("broken\nin two lines")
    except ValueError:
        logging.getLogger("lanemq.test").exception("it failed: %s", "really\n")
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["logger"], line["message"]) == ("error", "lanemq.test", "it failed: really\n")
    assert "ValueError: broken" in line["error"]


def test_a_broker_knows_where_each_of_its_options_came_from(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so to clients, such as the console; options have there the names of `BrokerOptions`."""
    found: list[BrokerOptions] = []
    monkeypatch.setattr("lanemq.cli.server.serving.check_start", lambda options: (found.append(options), sys.exit())[1])
    variables = {"LANEMQ_BROKER_RETENTION": "3h"}
    flags = ["broker", "--data", str(tmp_path), "--config", str(file), "--listen", "127.0.0.1:0", "--no-auto-create"]
    CliRunner().invoke(main, flags, env=variables)
    shown = found[0].shown({"listen": "127.0.0.1:4711"})
    assert {name: shown[name] for name in ("listen", "retention", "durable", "auto_create_topics", "cluster")} == {
        "listen": ("127.0.0.1:4711", "command line"),
        "retention": ("10800.0", "environment LANEMQ_BROKER_RETENTION"),
        "durable": ("False", f"file {file}"),
        "auto_create_topics": ("False", "command line"),
        "cluster": ("LaneMQ", ""),
    }


def test_a_text_log_shows_no_line_that_a_client_has_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    log_to_stderr("INFO")
    forged = "x\n2026-01-01 00:00:00 ERROR lanemq.broker: the disk is gone\x1b[2J\r\u2028y"
    try:
        raise ValueError(forged)
    except ValueError:
        logging.getLogger("lanemq.test").exception("client %s is refused", forged)
    first, *traceback = capsys.readouterr().err.split("\n")[:-1]
    assert "client x\\n2026-01-01" in first
    assert "gone\\x1b[2J\\r\\u2028y is refused" in first
    assert all(line.startswith("  ") and line.isprintable() for line in traceback)


def test_a_warning_at_the_start_is_an_event_in_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def enough(_: object) -> None:
        raise CliError("enough")

    monkeypatch.setattr(serving, "check_start", enough)
    words = ["broker", "--data", str(tmp_path / "d"), "--listen", "0.0.0.0:0", "--log-format", "json"]
    line = json.loads(CliRunner().invoke(main, words).stderr.splitlines()[0])
    assert line["level"] == "warning"
    assert "can be reached from other machines" in line["message"]


def test_a_private_key_that_every_user_may_read_is_a_warning_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, authority: Authority
) -> None:
    def enough(_: object) -> None:
        raise CliError("enough")

    monkeypatch.setattr(serving, "check_start", enough)
    issued = authority.issue("readable")
    words = ["broker", "--data", str(tmp_path / "d"), "--tls-cert", str(issued.cert), "--tls-key", str(issued.key)]
    assert "private key" not in CliRunner().invoke(main, words).stderr
    issued.key.chmod(0o644)
    warned = CliRunner().invoke(main, words).stderr
    assert f"warning: {issued.key} holds a private key, and every user of this machine can read it: chmod 600" in warned
