"""Draws the charts of docs/benchmarks.md from the tables of benchmarks/RESULTS.md: `python scripts/plot_results.py`.

The charts are SVG files without scripts or fonts. A test compares them with what this program draws, so they always
show the figures of the page beside them.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
IMAGES = ROOT / "docs" / "images"
STYLE = """text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1e293b; }
    .panel { fill: #ffffff; stroke: #e2e8f0; }
    .compiled { fill: #1d4ed8; } .pure { fill: #94a3b8; }
    .name { text-anchor: end; } .s { fill: #475569; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e2e8f0; } .s { fill: #cbd5e1; }
      .panel { fill: #0f172a; stroke: #1e293b; }
      .compiled { fill: #3b82f6; } .pure { fill: #64748b; }
    }"""
LEFT, WIDTH, BAR, GAP, TOP = 250, 560, 14, 14, 44

Bar = tuple[str, list[tuple[str, float]]]
"""The name of a group of bars, and class and value of each."""


def table(title: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    section = RESULTS.read_text("utf-8").split(f"## {title}\n")[1]
    rows = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def figure(text: str) -> float | None:
    """The first number of a cell such as `691,788/s`, or None."""
    found = re.match(r"([\d,]+(?:\.\d+)?)/s", text)
    return float(found[1].replace(",", "")) if found else None


def messages(wanted: str) -> list[Bar]:
    """Compiled and pure rates of the rows of the table of messages whose names begin so."""
    bars = []
    for row in table("Messages"):
        pairs = [("compiled", figure(row[1])), ("pure", figure(row[5]))] if len(row) > 5 else []
        values = [(kind, value) for kind, value in pairs if value is not None]
        if row[0].replace("`", "").startswith(tuple(wanted.split("|"))) and values:
            bars.append((row[0].replace("`", ""), values))
    return bars


def draw(title: str, bars: list[Bar]) -> str:
    largest = max(value for _, values in bars for _, value in values)
    lines, y = [], TOP
    for name, values in bars:
        lines.append(f'<text class="name" x="{LEFT - 12}" y="{y + len(values) * BAR / 2 + 4:.0f}">{name}</text>')
        for kind, value in values:
            width = max(1.0, value / largest * WIDTH)
            lines.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" rx="2"/>')
            lines.append(f'<text class="s" x="{LEFT + width + 8:.1f}" y="{y + BAR - 3}">{value:,.0f}/s</text>')
            y += BAR
        y += GAP
    key = "\n  ".join(
        f'<rect class="{kind}" x="{x}" y="18" width="12" height="12" rx="2"/><text x="{x + 18}" y="29">{kind}</text>'
        for kind, x in (("compiled", LEFT), ("pure", LEFT + 100))
    )
    body = "\n  ".join([key, *lines])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {y}" role="img" aria-labelledby="title">\n'
        f'  <title id="title">{title}</title>\n  <style>\n    {STYLE}\n  </style>\n'
        f'  <rect class="panel" x="1" y="1" width="958" height="{y - 2}" rx="12"/>\n  {body}\n</svg>\n'
    )


def charts() -> dict[str, str]:
    """File name and content of every chart."""
    return {
        "benchmark-send.svg": draw("Messages sent per second", messages("one send|submit|send_many|async")),
        "benchmark-consume.svg": draw("Messages consumed per second", messages("consume")),
    }


if __name__ == "__main__":
    for name, content in charts().items():
        (IMAGES / name).write_text(content, "utf-8")
