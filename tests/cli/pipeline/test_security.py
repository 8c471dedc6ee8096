"""`lanemq pipeline` with TLS and credentials: flags override the file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.certificates import Authority
from tests.guarded_broker import SECRET, guarded_broker

from lanemq import Admin, Credentials, TlsOptions
from lanemq.cli.main import main
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.pipeline import Pipeline
from lanemq.pipelines.running.program import check_topic
from lanemq.testing.embedded import EmbeddedBroker

OTHERS = 'accessKey = "absent"\nsecretKey = "another-secret"\nsecurityToken = "t"\n'


@pytest.fixture(scope="module")
def guarded(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with guarded_broker(authority, tmp_path_factory.mktemp("broker")) as running:
        with Admin(
            running.address, tls=TlsOptions(authority.ca), credentials=Credentials("root", SECRET)
        ) as admin:  # fmt: skip
            admin.create_topic("orders", 2)
        yield running


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> list[Pipeline]:
    """Replaces a run by the request for its topic, which every run makes before Spark starts."""
    ran: list[Pipeline] = []

    def asks_for_its_topic(pipeline: Pipeline, **_: Any) -> None:
        check_topic(pipeline)
        Checkpoint(pipeline.folder, pipeline.name, pipeline.source.public_options).close()
        ran.append(pipeline)

    monkeypatch.setattr("lanemq.pipelines.running.program.run", asks_for_its_topic)
    return ran


class Place:
    """A file that declares a pipeline, and the flags that its broker needs."""

    def __init__(self, folder: Path, server: str, authority: Authority) -> None:
        self.folder, self.file = folder, folder / "orders.toml"
        self.server = server
        (folder / "secret").write_text(f"{SECRET}\n")
        self.tls = ("--tls-ca", str(authority.ca))
        self.user = ("--access-key", "root", "--secret-key-file", str(folder / "secret"))
        self.declare()

    def declare(self, more: str = "") -> None:
        self.file.write_text(
            f'[pipeline]\nname = "orders"\ncheckpoint = "{self.folder}/checkpoint"\n'
            f'[source]\nservers = "{self.server}"\ntopic = "orders"\nbrokerWait = "1ms"\n{more}'
            f'[stage]\nkind = "project"\nselect = ["key"]\n[sink]\nkind = "parquet"\npath = "{self.folder}/out"\n'
        )

    def run(self, *words: str, where: Path | None = None) -> Result:
        return CliRunner().invoke(main, ["pipeline", *words, str(where or self.file)])


@pytest.fixture
def place(tmp_path: Path, guarded: EmbeddedBroker, authority: Authority) -> Place:
    return Place(tmp_path, guarded.address, authority)


@pytest.mark.parametrize("more", ["", OTHERS, 'tls = "false"\n', f'tls.ca = "missing.pem"\n{OTHERS}'])
def test_flags_override_the_file(place: Place, without_spark: list[Pipeline], more: str) -> None:
    place.declare(more)
    assert place.run("run", "--quiet").exit_code > 0, "refused: no TLS, wrong secret, or no such file"
    ran = place.run("run", "--quiet", *place.tls, *place.user)
    assert ran.exit_code == 0, ran.stderr
    security = without_spark[0].source.parsed.security
    assert security.credentials == Credentials("root", SECRET), "no token of another user either"


def test_flags_override_a_python_file(place: Place, without_spark: list[Pipeline]) -> None:
    file = place.folder / "orders.py"
    file.write_text(
        "from lanemq.pipelines import ParquetSink, Pipeline, Project, Topic\n"
        f"source = Topic({place.server!r}, 'orders', accessKey='absent', secretKey='another-secret')\n"
        f"p = Pipeline('orders', source, Project(['key']), ParquetSink('out'), {str(place.folder / 'c')!r})\n"
    )
    ran = place.run("run", "--quiet", *place.tls, *place.user, where=file)
    assert ran.exit_code == 0, ran.stderr
    assert without_spark[0].source.parsed.security.credentials == Credentials("root", SECRET)


def test_a_flag_changes_only_its_own_option(place: Place, without_spark: list[Pipeline]) -> None:
    place.declare(f'tls.ca = "{place.tls[1]}"\ntls.verify = "ca"\naccessKey = "root"\nsecretKey = "{SECRET}"\n')
    assert place.run("run", "--quiet", "--tls-verify", "none").exit_code == 0
    options = without_spark[0].source.options
    assert (options["tls.verify"], options["tls.ca"]) == ("none", place.tls[1])
    assert options["secretKey"] == SECRET


def test_the_environment_supplies_what_flags_leave_out(
    place: Place, without_spark: list[Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANEMQ_TLS_CA", place.tls[1])
    monkeypatch.setenv("LANEMQ_SECRET_KEY", SECRET)
    assert place.run("run", "--quiet", "--tls", "--access-key", "root").exit_code == 0
    assert without_spark[0].source.options["tls.ca"] == place.tls[1]


def test_status_uses_flags_or_the_secret_of_the_file(place: Place) -> None:
    """The checkpoint has no secret, so a checkpoint folder needs flags."""
    place.declare(f'tls.ca = "{place.tls[1]}"\naccessKey = "root"\nsecretKey = "{SECRET}"\n')
    assert place.run("run", "--quiet").exit_code == 0
    checkpoint = place.folder / "checkpoint"
    assert json.loads(place.run("status", "--json").stdout)["lag"] == 0
    assert json.loads(place.run("status", "--json", where=checkpoint).stdout)["lag"] is None
    assert json.loads(place.run("status", "--json", *place.user, where=checkpoint).stdout)["lag"] == 0
    place.declare(OTHERS)
    assert json.loads(place.run("status", "--json", *place.tls).stdout)["lag"] is None
    assert json.loads(place.run("status", "--json", *place.tls, *place.user).stdout)["lag"] == 0
    assert SECRET not in (checkpoint / "lanemq" / "pipeline.json").read_text()


def test_flags_override_the_user_of_the_last_start(place: Place) -> None:
    used = {"servers": place.server, "topic": "orders", "accessKey": "absent", "tls": "true"}
    Checkpoint(place.folder / "checkpoint", "orders", used).close()
    shown = place.run("status", "--json", *place.tls, *place.user, where=place.folder / "checkpoint")
    assert json.loads(shown.stdout)["lag"] == 0


def test_check_uses_the_flags(place: Place) -> None:
    assert place.run("check", *place.tls, *place.user).exit_code == 0
    wrong = place.run("check", "--access-key", "root", "--secret-key-file", "missing")
    assert wrong.exit_code == 2
    assert "secretKeyFile" in wrong.stderr


@pytest.mark.parametrize("words", [("run",), ("check",), ("status",), ("parked", "list"), ("parked", "discard")])
def test_a_user_without_a_secret_is_refused(place: Place, words: tuple[str, ...]) -> None:
    refused = place.run(*words, "--access-key", "root")
    assert refused.exit_code == 2
    assert "give --secret-key-file" in refused.stderr


def test_an_untrusted_certificate_is_reported_with_the_flag_to_set(place: Place) -> None:
    refused = place.run("run", "--quiet", "--tls", *place.user)
    assert refused.exit_code == 1
    assert "--tls-ca must name the file" in refused.stderr
    assert "Start a broker" not in refused.stderr
