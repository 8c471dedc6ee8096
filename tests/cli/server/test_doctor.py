"""`lanemq backup`, `restore` and `doctor` on real data folders."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from tests.certificates import Authority
from tests.log.conftest import send

from lanemq.broker.config import BrokerOptions
from lanemq.cli.main import main
from lanemq.cli.server import doctor
from lanemq.client.producer.producer import Producer
from lanemq.client.topics import NewTopic
from lanemq.core.brokering.disk_space import Space
from lanemq.log.folder.examination import Examined
from lanemq.log.state.database import VERSION
from lanemq.log.store import Store
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker


def lanemq(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def broker_on(data: Path) -> EmbeddedBroker:
    return EmbeddedBroker(BrokerOptions(data, listen=Address("127.0.0.1", 0)))


def findings(data: Path, *flags: str) -> dict[str, dict[str, str]]:
    return {each["check"]: each for each in json.loads(lanemq("doctor", "--data", str(data), "--json", *flags).stdout)}


def test_a_folder_is_examined_backed_up_and_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, copy, restored = tmp_path / "data", tmp_path / "copy", tmp_path / "restored"
    with broker_on(data) as broker, Producer(broker.address, create=[NewTopic("orders", 2)]) as producer:
        producer.send("orders", "first", key="k")
        assert "runs as process" in findings(data)["broker"]["text"]
        made = lanemq("backup", str(copy), "--data", str(data))
        assert made.exit_code == 0, made.output
    shown = findings(data, "--scan")
    assert {each["result"] for each in shown.values()} <= {"ok", "warning"}
    assert "1 record read" in shown["records"]["text"]
    with monkeypatch.context() as as_root:
        as_root.setattr(os, "geteuid", lambda: 0)
        made = lanemq("restore", str(copy), "--data", str(tmp_path / "of root"))
        assert (made.exit_code, "files belong to root" in made.stderr) == (0, True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    made = lanemq("restore", str(copy), "--data", str(restored))
    assert (made.exit_code, made.stderr) == (0, "")
    assert "1 topic" in findings(restored)["state"]["text"]
    with broker_on(restored) as broker, Producer(broker.address) as producer:
        assert producer.send("orders", "second", key="k").offset == 1
    again = lanemq("restore", str(copy), "--data", str(restored))
    assert again.exit_code == 1
    assert "is not empty" in again.output


def test_damage_and_lost_state_are_problems(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_on(data) as broker, Producer(broker.address, create=[NewTopic("orders", 1)]) as producer:
        for number in range(3):
            producer.send("orders", f"message {number}", key="k")
    (segment,) = [path for path in (data / "log").iterdir() if path.stat().st_size]
    content = segment.read_bytes()
    segment.write_bytes(content.replace(b"message 1", b"massage 1"))
    assert findings(data)["records"]["result"] == "ok", "found only by reading"
    assert findings(data, "--scan")["records"]["result"] == "PROBLEM"
    (data / "state.db").unlink()
    result = lanemq("doctor", "--data", str(data))
    assert result.exit_code == 1
    assert "state.db is missing" in result.output
    assert "does not exist" in lanemq("doctor", "--data", str(tmp_path / "nowhere")).output


def small_folder(tmp_path: Path) -> Path:
    store = Store(tmp_path / "data")
    store.recover()
    send(store, "kept")
    store.close()
    return tmp_path / "data"


def refusing(name: str) -> Callable[[Path, int], bool]:
    """As `os.access`, for a user that may not open this file, or files in this folder."""
    real = os.access
    return lambda path, mode: name not in Path(path).parts[-2:] and real(path, mode)


def test_files_of_another_user_are_a_problem_and_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_folder(tmp_path)
    assert "files" not in findings(data)
    for name in ("state.db", "lock", "log"):
        with monkeypatch.context() as patched:
            patched.setattr(os, "access", refusing(name))
            shown = findings(data)
        assert shown["files"]["result"] == "PROBLEM"
        assert f"/{name}" in shown["files"]["text"]
        assert shown["state"]["result"] == "ok", "a file that cannot be opened is not lost"


def test_a_log_whose_files_are_gone_is_a_problem(tmp_path: Path) -> None:
    data = small_folder(tmp_path)
    for each in (data / "log").iterdir():
        each.unlink()
    shown = findings(data)["files"]
    assert shown["result"] == "PROBLEM"
    assert "missing or cut: it ends at byte 0" in shown["text"]


def test_a_read_only_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_folder(tmp_path)
    found = os.statvfs(data)
    sizes = {name: getattr(found, name) for name in ("f_bavail", "f_blocks", "f_bfree", "f_frsize")}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY, **sizes))
    shown = findings(data)
    assert "read-only file system" in shown["folder"]["text"]
    assert shown["state"]["result"] == "ok"
    assert not (data / "state.db-shm").exists(), "nothing is created"


MIB = 1024 * 1024
SIZES = doctor.DiskSettings(min_free=512 * MIB, retention=0, segment=256 * MIB)


def test_the_disk_is_measured_by_the_settings_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder comes from the same file. And the control: by the defaults, there is enough space."""
    data, file = small_folder(tmp_path), tmp_path / "lanemq.toml"
    usage = SimpleNamespace(total=100 * 2**30, used=98 * 2**30, free=2 * 2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert findings(data)["disk"]["result"] == "ok"
    file.write_text(f"[broker]\ndata = {json.dumps(str(data))}\nmin-free-bytes = {3 * 2**30}\n")
    result = lanemq("doctor", "--config", str(file))
    assert result.exit_code == 1
    assert "sends stop below 3.0 GiB: a broker refuses them now" in " ".join(result.output.split())
    asked = lanemq("doctor")
    assert (asked.exit_code, "--config FILE" in asked.output) == (2, True)


@pytest.mark.parametrize(
    ("finding", "result"),
    [
        (doctor.limits_finding((1024, 1024)), "warning"),
        (doctor.limits_finding((1024, 1_000_000)), "ok"),
        (doctor.limits_finding((-1, -1)), "ok"),
        (doctor.space_finding(Space(10, 2**40), SIZES), "PROBLEM"),
        (doctor.space_finding(Space(2**39, 2**40), SIZES), "ok"),
        (doctor.space_finding(Space(900 * MIB, 2**40), SIZES), "ok"),
        (doctor.space_finding(Space(600 * MIB, 2**40), SIZES), "warning"),
        (doctor.space_finding(Space(900 * MIB, 2**40), SIZES._replace(min_free=2**30)), "PROBLEM"),
        (doctor.space_finding(Space(900 * MIB, 2**30), SIZES._replace(min_free=2**30)), "ok"),
        (doctor.space_finding(Space(1, 2**40), SIZES._replace(min_free=0)), "ok"),
        (doctor.space_finding(Space(0, 2**40), SIZES._replace(min_free=0)), "PROBLEM"),
        (doctor.retention_finding(Space(2**35, 2**40), 2**30, SIZES._replace(retention=2**34)), "ok"),
        (doctor.retention_finding(Space(2**35, 2**40), 2**30, SIZES._replace(retention=2**36)), "warning"),
        (doctor.retention_finding(Space(2**35, 2**40), 2**35, SIZES._replace(retention=2**36)), "warning"),
        (doctor.retention_finding(Space(2**35, 2**40), 2**35, SIZES._replace(retention=2**36, min_free=0)), "ok"),
        (doctor.retention_finding(Space(2**35, 2**40), 0, SIZES), "ok"),
        (doctor.layout_finding(Examined(layout=VERSION + 1)), "PROBLEM"),
        (doctor.layout_finding(Examined(layout=-1)), "PROBLEM"),
        (doctor.layout_finding(Examined(layout=VERSION)), "ok"),
        (doctor.clock_finding(Examined(last_store_time=10_000), now=5_000), "PROBLEM"),
        (doctor.clock_finding(Examined(last_store_time=10_000), now=10_000), "ok"),
        (doctor.clock_finding(Examined(last_store_time=10_000, last_run=20_000), now=29 * 86_400_000), "ok"),
        (doctor.clock_finding(Examined(last_store_time=10_000, last_run=20_000), now=31 * 86_400_000), "warning"),
        (doctor.clock_finding(Examined(last_store_time=10_000, last_run=20_000), now=15_000), "warning"),
    ],
)
def test_results(finding: doctor.Finding | None, result: str) -> None:
    assert finding is not None
    assert finding.result == result


def test_the_users_and_the_certificate_of_the_settings_are_examined(tmp_path: Path, authority: Authority) -> None:
    data, users, config = tmp_path / "data", tmp_path / "users.toml", tmp_path / "lanemq.toml"
    data.mkdir(mode=0o750)
    soon, late = authority.issue("soon", days=2), authority.issue("late", days=-1)

    def found(cert: Path, key: Path) -> dict[str, dict[str, str]]:
        config.write_text(f'[broker]\nusers = "{users}"\ntls-cert = "{cert}"\ntls-key = "{key}"\n')
        return findings(data, "--config", str(config))

    users.write_text('[[user]]\naccess_key = "me"\nsecret_key = "123456"\n')
    shown = found(soon.cert, soon.key)
    assert (shown["users"]["result"], shown["certificate"]["result"]) == ("ok", "warning")
    assert "1 user" in shown["users"]["text"]
    assert "expires" in shown["certificate"]["text"]
    assert "private key" not in shown
    users.write_text("[[user]]\n")
    shown = found(late.cert, late.key)
    assert (shown["users"]["result"], shown["certificate"]["result"]) == ("PROBLEM", "PROBLEM")
    assert "has expired" in shown["certificate"]["text"]
    assert "cannot be read" in found(tmp_path / "missing", late.key)["certificate"]["text"]


def test_a_private_key_that_every_user_may_read_is_reported(tmp_path: Path, authority: Authority) -> None:
    data, config = tmp_path / "data", tmp_path / "lanemq.toml"
    data.mkdir(mode=0o750)
    issued = authority.issue("open", days=100)
    issued.key.chmod(0o644)
    config.write_text(f'[broker]\ntls-cert = "{issued.cert}"\ntls-key = "{issued.key}"\n')
    shown = findings(data, "--config", str(config))["private key"]
    assert (shown["result"], f"chmod 600 {issued.key}" in shown["text"]) == ("warning", True)


def test_a_file_system_without_a_size_is_a_warning_and_not_a_full_disk() -> None:
    nothing, sizes = Space(0, 0), doctor.DiskSettings(512 << 20, 0, 1 << 20)
    assert doctor.space_finding(nothing, sizes).result == "warning"
    unlimited = doctor.retention_finding(nothing, 5, sizes)
    assert (unlimited.result, "no size limit: set --retention-bytes" in unlimited.text) == ("warning", True)
