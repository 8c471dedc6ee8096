"""Pipelines on Spark: messages in, rows in a table out, every key in order, every effect once.

Public names are imported on first use, so that an executor that runs one stage does not load every sink.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lanemq.model.environment import INSTALL_SPARK

if TYPE_CHECKING:
    from lanemq.pipelines.batch import Batch
    from lanemq.pipelines.declare.files import load
    from lanemq.pipelines.operate.dead_letters import DeadLetterRecord, DeadLetters, DeadLetterState, dead_letters
    from lanemq.pipelines.operate.parked import ParkedLanes, parked
    from lanemq.pipelines.pipeline import Pipeline
    from lanemq.pipelines.ports import Append, Merge, Results, Sink, Stage
    from lanemq.pipelines.rows import FileRows, RowFile, Rows, TableRows
    from lanemq.pipelines.running.failure import PipelineFailed
    from lanemq.pipelines.running.program import run
    from lanemq.pipelines.running.progress import Progress
    from lanemq.pipelines.running.runner import RunningPipeline, start
    from lanemq.pipelines.sinks.delta import DeltaSink, read_table
    from lanemq.pipelines.sinks.factory import open_sink
    from lanemq.pipelines.sinks.foreach import ForeachSink
    from lanemq.pipelines.sinks.parquet import ParquetSink
    from lanemq.pipelines.sinks.postgres import PostgresSink
    from lanemq.pipelines.sinks.sqlite import SqliteSink
    from lanemq.pipelines.sinks.topic import TopicSink
    from lanemq.pipelines.source import Topic
    from lanemq.pipelines.stages.cdc.last_state import LastState
    from lanemq.pipelines.stages.project import Project
    from lanemq.pipelines.stages.transitions.event import Event
    from lanemq.pipelines.stages.transitions.rules import DeadLetter, Hold, Park, StateLimits
    from lanemq.pipelines.stages.transitions.stage import Transitions
    from lanemq.pipelines.stages.transitions.views import HeldLane, LaneState

_MODULES = {
    "lanemq.pipelines.batch": ("Batch",),
    "lanemq.pipelines.declare.files": ("load",),
    "lanemq.pipelines.operate.dead_letters": (
        "DeadLetterRecord",
        "DeadLetters",
        "DeadLetterState",
        "dead_letters",
    ),
    "lanemq.pipelines.operate.parked": (
        "ParkedLanes",
        "parked",
    ),
    "lanemq.pipelines.pipeline": ("Pipeline",),
    "lanemq.pipelines.ports": (
        "Append",
        "Merge",
        "Results",
        "Sink",
        "Stage",
    ),
    "lanemq.pipelines.rows": ("FileRows", "RowFile", "Rows", "TableRows"),
    "lanemq.pipelines.running.failure": ("PipelineFailed",),
    "lanemq.pipelines.running.program": ("run",),
    "lanemq.pipelines.running.progress": ("Progress",),
    "lanemq.pipelines.running.runner": (
        "RunningPipeline",
        "start",
    ),
    "lanemq.pipelines.sinks.delta": (
        "DeltaSink",
        "read_table",
    ),
    "lanemq.pipelines.sinks.factory": ("open_sink",),
    "lanemq.pipelines.sinks.foreach": ("ForeachSink",),
    "lanemq.pipelines.sinks.parquet": ("ParquetSink",),
    "lanemq.pipelines.sinks.postgres": ("PostgresSink",),
    "lanemq.pipelines.sinks.sqlite": ("SqliteSink",),
    "lanemq.pipelines.sinks.topic": ("TopicSink",),
    "lanemq.pipelines.source": ("Topic",),
    "lanemq.pipelines.stages.cdc.last_state": ("LastState",),
    "lanemq.pipelines.stages.project": ("Project",),
    "lanemq.pipelines.stages.transitions.event": ("Event",),
    "lanemq.pipelines.stages.transitions.rules": (
        "DeadLetter",
        "Hold",
        "Park",
        "StateLimits",
    ),
    "lanemq.pipelines.stages.transitions.stage": ("Transitions",),
    "lanemq.pipelines.stages.transitions.views": (
        "HeldLane",
        "LaneState",
    ),
}
"""The same for the running program."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Append",
    "Batch",
    "DeadLetter",
    "DeadLetterRecord",
    "DeadLetterState",
    "DeadLetters",
    "DeltaSink",
    "Event",
    "FileRows",
    "ForeachSink",
    "HeldLane",
    "Hold",
    "LaneState",
    "LastState",
    "Merge",
    "Park",
    "ParkedLanes",
    "ParquetSink",
    "Pipeline",
    "PipelineFailed",
    "PostgresSink",
    "Progress",
    "Project",
    "Results",
    "RowFile",
    "Rows",
    "RunningPipeline",
    "Sink",
    "SqliteSink",
    "Stage",
    "StateLimits",
    "TableRows",
    "Topic",
    "TopicSink",
    "Transitions",
    "dead_letters",
    "load",
    "open_sink",
    "parked",
    "read_table",
    "run",
    "start",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"lanemq.pipelines has no public name {name!r}")
    try:
        value = getattr(import_module(module), name)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package in ("pyspark", "pyarrow", "numpy", "deltalake"):
            raise ModuleNotFoundError(f"lanemq.pipelines needs {package}: {INSTALL_SPARK}", name=package) from missing
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
