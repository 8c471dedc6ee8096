"""`make docs`: pages reach their readers complete, from this host only; what is drawn or listed follows its source."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.site.build import FILES, PAGES, collect, listed, seal, turn_links, update
from scripts.site.conf import as_rest
from scripts.site.pages import MACHINERY, api_pages
from starlette.applications import Starlette
from starlette.testclient import TestClient
from tests.documents import ROOT

import lanemq
from lanemq.console.app import document_routes
from scripts import plot_results


def test_the_overviews_list_every_guide_and_every_page_of_the_reference() -> None:
    for folder in ("guides", "reference", "developers"):
        path = Path(folder) / "README.md"
        found = listed({path: (ROOT / "docs" / path).read_bytes()}, folder)
        there = {f"{folder}/{page.stem}" for page in (ROOT / "docs" / folder).glob("*.md")} - {f"{folder}/README"}
        assert there <= {*found}


def test_the_api_leaves_out_methods_that_are_not_for_users_and_that_exist() -> None:
    page = dict(api_pages())["api/client.md"]
    for name, methods in MACHINERY.items():
        assert [each for each in methods if not hasattr(getattr(lanemq, name), each)] == []
        assert f"autoclass:: lanemq.{name}\n   :members:" in page
    assert page.count(":exclude-members: ") == len(MACHINERY)


def test_links_lead_to_the_same_things_on_the_site() -> None:
    guide, place = ROOT / "docs" / "guides" / "x.md", Path("guides/x.md")
    turned = {
        "[a](../concepts.md#glossary)": "[a](../concepts.md#glossary)",
        "[a](../../README.md)": "[a](../readme.md)",
        "[a](../../benchmarks/RESULTS.md#messages)": "[a](../measurements.md#messages)",
        "[a](../../examples/visits.py)": "[a](../files/examples/visits.py.txt)",
        "[a](../README.md)": "[a](../index.md)",
        "```\n[a](../../README.md)\n```": "```\n[a](../../README.md)\n```",
    }
    assert {text: turn_links(text, guide, place) for text in turned} == turned


def test_every_link_out_of_the_documents_has_a_place_on_the_site() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#:\s]+)", text):
            target = (page.parent / link).resolve().relative_to(ROOT)
            assert target.parts[0] in {"docs", *FILES} or str(target) in PAGES, f"{page.name}: {link}"


def test_every_link_and_image_of_the_collected_pages_is_collected_too() -> None:
    """Sphinx would refuse the page, but building the site takes too long for every run of the tests."""
    pages, missing = collect(), list[str]()
    assert Path("measurements.md") in pages
    for page, content in pages.items():
        text = re.sub(r"```.*?```|`[^`\n]+`", "", content.decode("utf-8", "replace"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#:\s]+)[^)]*\)", text) if page.suffix == ".md" else ():
            target = Path(os.path.normpath(page.parent / link))
            missing += [f"{page}: {link}"] if target not in pages else []
    assert missing == []


def test_only_what_changed_is_written_and_what_is_gone_is_removed(tmp_path: Path) -> None:
    update(tmp_path, {Path("a.md"): b"one", Path("guides/b.md"): b"two"})
    kept = (tmp_path / "a.md").stat().st_mtime_ns
    assert not update(tmp_path, {Path("a.md"): b"one", Path("guides/b.md"): b"new"})
    assert (tmp_path / "a.md").stat().st_mtime_ns == kept
    assert (tmp_path / "guides" / "b.md").read_bytes() == b"new"
    assert update(tmp_path, {Path("a.md"): b"one"}), "the site must be built from the start"
    assert not (tmp_path / "guides" / "b.md").exists()


def test_docstrings_keep_their_code_and_their_names() -> None:
    lines = ["Sends `value`.", "", "    with Producer() as `p`:", "        pass", "", "Args:", "    key: The `key`."]
    assert as_rest(lines) == [
        "Sends ``value``.", "", ".. code-block:: python", "", "    with Producer() as `p`:", "        pass", "",
        "Args:", "    key: The ``key``.",
    ]  # fmt: skip


PAGE = '<head></head><body><script>go()</script><p style="color: red">x</p><style>p { margin: 0 }</style></body>'


def test_scripts_and_styles_of_a_page_move_into_files(tmp_path: Path) -> None:
    (tmp_path / "guides").mkdir()
    (tmp_path / "_static").mkdir()
    page = tmp_path / "guides" / "x.html"
    page.write_text(PAGE)
    seal(tmp_path)
    text = page.read_text()
    assert "go()" not in text
    assert "<style" not in text
    assert " style=" not in text
    for name in re.findall(r'(?:src|href)="([^"]+)"', text):
        assert (page.parent / name).is_file()


def test_a_page_that_loads_from_another_host_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text('<head></head><script src="https://cdn.example/x.js"></script>')
    with pytest.raises(SystemExit, match=r"x\.html loads from another host"):
        seal(tmp_path)


def test_the_charts_show_the_figures_of_the_measurements() -> None:
    """If this fails, run `python scripts/plot_results.py`."""
    for name, drawn in plot_results.charts().items():
        assert (plot_results.IMAGES / name).read_text("utf-8") == drawn


def test_the_console_serves_the_site_if_it_is_built(tmp_path: Path) -> None:
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides" / "x.html").write_text("a guide")
    (tmp_path / "index.html").write_text("the first page")
    client = TestClient(Starlette(routes=document_routes(tmp_path)))
    assert client.get("/docs/").text == client.get("/docs").text == "the first page"
    assert client.get("/docs/guides/x.html").text == "a guide"
    assert client.get("/docs/../app.py").status_code == 404


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_make_docs_builds_every_page_and_refuses_a_broken_link() -> None:
    words, broken = [sys.executable, "-m", "scripts.site.build"], ROOT / "docs" / "guides" / "broken.md"
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "src" / "lanemq" / "console" / "documents"
    assert (site / "reference" / "api" / "client.html").is_file()
    assert [*site.rglob("*.py")] == [], "tests and tools would take them for code of the package"
    assert "Producer" in (site / "reference" / "api" / "client.html").read_text("utf-8")
    broken.write_text("# Broken\n\n[nowhere](nowhere.md)\n")
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        broken.unlink()
    assert done.returncode == 1
    assert "nowhere.md" in done.stderr
