"""Runs seeds and prints what they found.

    python -m lanemq.testing.sim --seeds 300
    python -m lanemq.testing.sim --seed 17 --verbose

The exit code is 1 if a seed failed. The command that replays it is printed with what was found.
"""

import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import click

from lanemq.testing.sim.coordinated import run as coordinated
from lanemq.testing.sim.judge import Result
from lanemq.testing.sim.run import run_seed

SHOWN_LINES = 40
NOT_SHOWN = ("sends", "commits", "effects", "faults", "resets", "restarts")


@click.command()
@click.option("--seeds", default=300, show_default=True, help="Number of seeds.")
@click.option("--start", default=0, show_default=True, help="The first seed.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes to run them in.")
@click.option("--coordinated", "beside", is_flag=True, help="Message brokers without rules, beside a coordinator.")
@click.option("--seed", type=int, help="Run only this seed.")
@click.option("--verbose", is_flag=True, help="With --seed: print every line of its trace.")
@click.option("--keep-going", is_flag=True, help="Do not stop at the first seed that fails.")
def main(seeds: int, start: int, jobs: int, seed: int | None, verbose: bool, keep_going: bool, beside: bool) -> None:
    """Simulate the whole system with faults, once per seed, and check what happened."""
    if seed is not None:
        result = (coordinated.run_seed if beside else run_seed)(seed, click.echo if verbose else None)
        _print(result, beside)
        sys.exit(0 if result.passed else 1)
    failed = _run_all(range(start, start + seeds), jobs, keep_going, beside)
    if failed:
        click.echo(f"{len(failed)} of {seeds} seeds failed: {', '.join(map(str, failed))}")
        sys.exit(1)


def _run_all(seeds: range, jobs: int, keep_going: bool, beside: bool) -> list[int]:
    failed: list[int] = []
    seeds_with: Counter[str] = Counter()
    done, virtual = 0, 0.0
    for result in _results(seeds, jobs, coordinated.run_seed if beside else run_seed):
        done, virtual = done + 1, virtual + result.seconds
        seeds_with.update(what for what, count in result.seen.items() if count)
        if not result.passed:
            failed.append(result.seed)
            _print(result, beside)
            if not keep_going:
                break
        if done % 50 == 0:
            click.echo(f"{done} of {len(seeds)} seeds, {virtual / 60:.0f} virtual minutes, {len(failed)} failed")
    click.echo(f"{done} seeds, {virtual / 60:.0f} virtual minutes, {len(failed)} failed; of them had:")
    for what, count in sorted(seeds_with.items(), key=lambda each: (-each[1], each[0])):
        if what not in NOT_SHOWN:
            click.echo(f"  {count:6}  {what}")
    return failed


def _results(seeds: range, jobs: int, run: Callable[[int], Result]) -> Iterator[Result]:
    # New processes: a fork would inherit the threads and loops of its parent. Each ends after 100 seeds, because what a
    # run leaves to the garbage collector is frozen by the next run, and a process would grow by 0.7 MB a seed.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=25) as pool:
        yield from pool.imap(run, seeds, chunksize=4)


def _print(result: Result, beside: bool) -> None:
    if result.passed:
        click.echo(f"seed {result.seed} passed: {result.seconds:.0f} virtual seconds, trace {result.digest}")
        for what, count in sorted(result.seen.items()):
            if count:
                click.echo(f"  {count:6}  {what}")
        return
    click.echo(f"seed {result.seed} FAILED, trace {result.digest}; its last lines:")
    for line in result.last_lines[-SHOWN_LINES:]:
        click.echo(f"  {line}")
    for problem in result.problems:
        click.echo(problem)
    shape = "--coordinated " if beside else ""
    click.echo(f"replay it: python -m lanemq.testing.sim {shape}--seed {result.seed} --verbose")


if __name__ == "__main__":
    main()
