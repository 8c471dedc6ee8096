"""The programs of docs/guides/grpc.md, as they stand there, with the address of the front of the case."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from interop.grpc.conftest import command_of, staged
from interop.grpc.programs import HERE, rust_target
from interop.ports import eventually

GUIDE = HERE.parents[1] / "docs" / "guides" / "grpc.md"


def program(fence: str) -> str:
    """The only block of the guide in a language."""
    (found,) = re.findall(rf"^```{fence}\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    return str(found)


def _python(folder: Path, text: str, command: list[str]) -> list[str]:
    (folder / "orders.py").write_text(text)
    return [*command[:-1], str(folder / "orders.py")]


def _java(folder: Path, text: str, command: list[str]) -> list[str]:
    (folder / "Orders.java").write_text(text)
    return [*command[:-1], str(folder / "Orders.java")]


def _node(folder: Path, text: str, command: list[str]) -> list[str]:
    place = Path(command[-1]).parent
    (folder / "orders.js").write_text(text)
    return ["env", f"NODE_PATH={place / 'node_modules'}", "node", str(folder / "orders.js")]


def _go(folder: Path, text: str, command: list[str]) -> list[str]:
    for name in ("go.mod", "go.sum"):
        shutil.copy(HERE / "go" / name, folder)
    (folder / "main.go").write_text(text)
    return ["go", "run", "."]


def _rust(folder: Path, text: str, command: list[str]) -> list[str]:
    for name in ("Cargo.toml", "Cargo.lock"):
        settings = (HERE / "rust" / name).read_text()
        (folder / name).write_text(settings.replace('name = "client"', 'name = "orders"'))
    (folder / "src").mkdir()
    (folder / "src" / "main.rs").write_text(text)
    return ["env", f"CARGO_TARGET_DIR={rust_target()}", "cargo", "run", "--quiet", "--locked"]


Writer = Callable[[Path, str, list[str]], list[str]]
PROGRAMS: Mapping[str, tuple[str, Writer]] = {
    "python": ("py", _python),
    "java": ("java", _java),
    "node": ("js", _node),
    "go": ("go", _go),
    "rust": ("rust", _rust),
}


@pytest.mark.parametrize("language", sorted(PROGRAMS))
def test_the_program_of_a_language_prints_what_it_has_sent(language: str, tmp_path: Path) -> None:
    command = command_of(language)
    fence, write = PROGRAMS[language]
    folder = tmp_path / "program"
    folder.mkdir()
    with staged(tmp_path, language, command) as scene:
        scene.admin.create_topic("orders", 4, ordered=True)
        words = write(folder, program(fence).replace("localhost:8081", scene.front.address), command)
        home = (
            {} if language in ("go", "rust") else {"HOME": str(folder)}
        )  # their tools keep what they have built there
        with (folder / "output").open("wb") as output:
            running = subprocess.Popen(
                words, stdout=output, stderr=output, cwd=folder, env={**os.environ, **home}, start_new_session=True
            )
        try:
            eventually(lambda: "paid" in (folder / "output").read_text().split(), 180, f"the message; see {folder}")
        finally:
            os.killpg(running.pid, 9)
            running.wait()
