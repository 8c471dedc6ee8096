"""What the main job prints while it runs."""

import io

from rich.console import Console

from lanemq.testing.demo.progress import BarProgress, CountedPhase, LineProgress, progress_on

PHASES = (CountedPhase("sent", 2_000), CountedPhase("in table", 10))


def test_without_a_terminal_a_line_is_printed_every_few_seconds_and_at_the_end() -> None:
    out = io.StringIO()
    with progress_on(Console(file=out, width=200), PHASES) as progress:
        assert isinstance(progress, LineProgress)
        progress.show((0, 0), 100.0, "Spark is starting")
        for second, counts in ((101.0, (500, 0)), (105.0, (1_500, 2)), (106.5, (2_001, 10))):
            progress.show(counts, second)
    assert out.getvalue().splitlines() == [
        "  0 s: sent 0 of 2,000, in table 0 of 10 (Spark is starting)",
        "  5 s: sent 1,500 of 2,000, in table 2 of 10",
        "  6 s: sent 2,000 of 2,000, in table 10 of 10",
    ]


def test_a_terminal_gets_a_bar_for_each_phase() -> None:
    out = io.StringIO()
    with progress_on(Console(file=out, width=200, force_terminal=True), PHASES) as progress:
        assert isinstance(progress, BarProgress)
        progress.show((2_000, 0), 0.5, "Spark is starting")
        progress.show((2_000, 5), 1.0)
    assert "2000/2000" in out.getvalue()
    assert "5/10" in out.getvalue()
