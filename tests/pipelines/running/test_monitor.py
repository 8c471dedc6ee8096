"""The metrics of a pipeline, from its progress."""

import urllib.request

import pytest
from tests.pipelines.running.test_progress import QUEUE, applied

from lanemq.cli.options import CliError
from lanemq.cli.pipeline.run_output import monitored
from lanemq.net.address import Address
from lanemq.net.serving.monitor import Monitor
from lanemq.pipelines.running.monitor import PipelineMonitor
from lanemq.pipelines.running.progress import Progress
from lanemq.spark.lag import QueueLag


def test_batches_are_added_up_and_levels_are_those_after_the_last_one() -> None:
    monitor, reported = PipelineMonitor("orders"), list[Progress]()
    report = monitor.counting(reported.append)
    assert monitor.ready_problems() == ["no batch is done yet"]
    counts = {"repeats": 2, "lanes_held": 3}
    report(Progress("orders", applied(1, outputs=5, dead_letters=1, counts=counts), messages=7, seconds=2.0))
    counts = {"repeats": 1, "lanes_held": 1}
    last = applied(2, outputs=4, counts=counts)
    report(Progress("orders", last, messages=3, seconds=0.2, lag=(QueueLag(QUEUE, 10, 12, 1.5),)))
    report(Progress("orders", applied(2, 1, outputs=1, counts={"lanes_held": 0}), seconds=0.1))
    found = {each.title: each.value for each in monitor.samples()}
    expected = {
        "batches_total": 2, "retry_passes_total": 1, "messages_total": 10, "rows_total": 10, "dead_letters_total": 1,
    }  # fmt: skip
    assert {name: found[f'lanemq_pipeline_{name}{{pipeline="orders"}}'] for name in expected} == expected
    assert found['lanemq_pipeline_counted_total{pipeline="orders",what="repeats"}'] == 3
    assert found['lanemq_pipeline_level{pipeline="orders",what="lanes_held"}'] == 0
    assert len(reported) == 3
    assert monitor.ready_problems() == []


def test_a_run_serves_its_metrics_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Monitor] = []
    start = Monitor.__init__

    def noted(self: Monitor, *args: object) -> None:
        start(self, *args)  # type: ignore[arg-type]
        opened.append(self)

    monkeypatch.setattr(Monitor, "__init__", noted)
    with monitored("orders", "127.0.0.1:0", lambda _: None) as report:
        report(Progress("orders", applied(1, outputs=5), messages=7, seconds=2.0))
        with urllib.request.urlopen(f"http://{opened[0].address}/metrics", timeout=60) as reply:
            assert 'lanemq_pipeline_rows_total{pipeline="orders"} 5.0' in reply.read().decode()
        with (
            pytest.raises(CliError, match="cannot listen there"),
            monitored("orders", str(opened[0].address), lambda _: None),
        ):
            pass
    free = Monitor(Address("127.0.0.1", opened[0].address.port), PipelineMonitor("orders"))
    free.close()
