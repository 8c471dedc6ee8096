"""How many tasks a batch has at least: from the option, else from the session's settings."""

import pytest

from lanemq.spark.options import parse_read_options
from lanemq.spark.parallelism import UNKNOWN_SLOTS, VARIABLE, least_tasks, task_slots, tell_python_processes

ELASTIC = {"spark.master": "yarn", "spark.dynamicAllocation.enabled": "true", "spark.executor.cores": "4"}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"spark.master": "local[6]"}, 6),
        ({"spark.master": "local"}, 6),
        ({"spark.master": "local[*,3]"}, 6),
        ({"spark.master": "local[6]", "spark.default.parallelism": "20"}, 20),
        ({"spark.master": "spark://h:7077"}, None),
        ({"spark.master": "spark://h:7077", "spark.cores.max": "12"}, 12),
        ({"spark.master": "yarn", "spark.executor.instances": "5", "spark.executor.cores": "4"}, 20),
        ({"spark.master": "yarn", "spark.executor.instances": "5"}, None),
        ({**ELASTIC, "spark.dynamicAllocation.maxExecutors": "10", "spark.executor.instances": "1"}, 40),
        ({**ELASTIC, "spark.executor.instances": "1"}, None),
        ({"spark.master": "local-cluster[2,1,1024]"}, None),
    ],
)
def test_the_settings_tell_how_many_tasks_can_run_at_once(settings: dict[str, str], found: int | None) -> None:
    """Executors that are there are not counted: at the start of a session there are none."""
    assert task_slots(settings, local=6) == found


def test_the_option_counts_before_the_session_and_the_session_before_the_default() -> None:
    given = {"servers": "localhost:9876", "topic": "orders"}
    options = parse_read_options(given, streaming=True)
    assert least_tasks(options, {}) == UNKNOWN_SLOTS
    assert least_tasks(options, {VARIABLE: "4"}) == 4
    chosen = parse_read_options({**given, "minPartitions": "9"}, streaming=True)
    assert least_tasks(chosen, {VARIABLE: "4"}) == 9


class FakeContext:
    """A session that had two cores when the source was registered first, and four later."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self.defaultParallelism = 2

    def getConf(self) -> "FakeContext":
        return self

    def getAll(self) -> list[tuple[str, str]]:
        return [("spark.master", "local[2]")]


def test_python_processes_of_one_session_have_one_environment() -> None:
    """With another one, Spark would start workers of its own for it."""
    context = FakeContext()
    tell_python_processes(context)  # type: ignore[arg-type]
    context.defaultParallelism = 4
    tell_python_processes(context)  # type: ignore[arg-type]
    assert context.environment == {VARIABLE: "2"}
