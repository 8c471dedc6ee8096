"""Pipelines on Spark: messages in, rows in a table out, every key in order, every effect once.

Public names are imported on first use, so that an executor that runs one stage does not load every sink.
"""

from typing import TYPE_CHECKING

from lanemq.model.environment import install_extra
from lanemq.model.lazy_names import lazy_names

if TYPE_CHECKING:
    from lanemq.pipelines.batches import Batch as Batch
    from lanemq.pipelines.batches import Runs as Runs
    from lanemq.pipelines.declare.files import load as load
    from lanemq.pipelines.operate.dead_letters import DeadLetterRecord as DeadLetterRecord
    from lanemq.pipelines.operate.dead_letters import DeadLetters as DeadLetters
    from lanemq.pipelines.operate.dead_letters import DeadLetterState as DeadLetterState
    from lanemq.pipelines.operate.dead_letters import dead_letters as dead_letters
    from lanemq.pipelines.operate.parked import HeldLane as HeldLane
    from lanemq.pipelines.operate.parked import LaneState as LaneState
    from lanemq.pipelines.operate.parked import ParkedLanes as ParkedLanes
    from lanemq.pipelines.operate.parked import parked as parked
    from lanemq.pipelines.operate.state import lane_state as lane_state
    from lanemq.pipelines.operate.state import state_table as state_table
    from lanemq.pipelines.pipeline import Pipeline as Pipeline
    from lanemq.pipelines.ports import Append as Append
    from lanemq.pipelines.ports import FileRows as FileRows
    from lanemq.pipelines.ports import Merge as Merge
    from lanemq.pipelines.ports import Results as Results
    from lanemq.pipelines.ports import RowFile as RowFile
    from lanemq.pipelines.ports import Rows as Rows
    from lanemq.pipelines.ports import Sink as Sink
    from lanemq.pipelines.ports import SinkRun as SinkRun
    from lanemq.pipelines.ports import Stage as Stage
    from lanemq.pipelines.ports import TableRows as TableRows
    from lanemq.pipelines.running.failure import PipelineFailed as PipelineFailed
    from lanemq.pipelines.running.program import run as run
    from lanemq.pipelines.running.progress import Progress as Progress
    from lanemq.pipelines.running.runner import RunningPipeline as RunningPipeline
    from lanemq.pipelines.running.runner import start as start
    from lanemq.pipelines.sinks.delta import DeltaSink as DeltaSink
    from lanemq.pipelines.sinks.delta import read_table as read_table
    from lanemq.pipelines.sinks.factory import open_sink as open_sink
    from lanemq.pipelines.sinks.foreach import ForeachSink as ForeachSink
    from lanemq.pipelines.sinks.iceberg import IcebergSink as IcebergSink
    from lanemq.pipelines.sinks.iceberg import read_iceberg as read_iceberg
    from lanemq.pipelines.sinks.parquet import ParquetSink as ParquetSink
    from lanemq.pipelines.sinks.postgres import PostgresSink as PostgresSink
    from lanemq.pipelines.sinks.sqlite import SqliteSink as SqliteSink
    from lanemq.pipelines.sinks.topic import TopicSink as TopicSink
    from lanemq.pipelines.source import SourceOptions as SourceOptions
    from lanemq.pipelines.source import Topic as Topic
    from lanemq.pipelines.stages.cdc.last_state import LastState as LastState
    from lanemq.pipelines.stages.project import Project as Project
    from lanemq.pipelines.stages.transitions.event_time import EventTime as EventTime
    from lanemq.pipelines.stages.transitions.messages import Event as Event
    from lanemq.pipelines.stages.transitions.messages import OnTimer as OnTimer
    from lanemq.pipelines.stages.transitions.messages import Step as Step
    from lanemq.pipelines.stages.transitions.rules import DeadLetter as DeadLetter
    from lanemq.pipelines.stages.transitions.rules import Hold as Hold
    from lanemq.pipelines.stages.transitions.rules import OnGap as OnGap
    from lanemq.pipelines.stages.transitions.rules import Park as Park
    from lanemq.pipelines.stages.transitions.rules import Policy as Policy
    from lanemq.pipelines.stages.transitions.rules import StateLimits as StateLimits
    from lanemq.pipelines.stages.transitions.stage import Transitions as Transitions
    from lanemq.pipelines.stages.transitions.timers import StepContext as StepContext
    from lanemq.pipelines.stages.transitions.timers import Timer as Timer
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "lanemq.pipelines.declare.files": ("load",),
            "lanemq.pipelines.operate.dead_letters": (
                "DeadLetterRecord",
                "DeadLetterState",
                "DeadLetters",
                "dead_letters",
            ),
            "lanemq.pipelines.operate.parked": (
                "HeldLane",
                "LaneState",
                "ParkedLanes",
                "parked",
            ),
            "lanemq.pipelines.operate.state": (
                "lane_state",
                "state_table",
            ),
            "lanemq.pipelines.pipeline": ("Pipeline",),
            "lanemq.pipelines.batches": (
                "Batch",
                "Runs",
            ),
            "lanemq.pipelines.ports": (
                "Append",
                "FileRows",
                "Merge",
                "Results",
                "RowFile",
                "Rows",
                "Sink",
                "SinkRun",
                "Stage",
                "TableRows",
            ),
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
            "lanemq.pipelines.sinks.iceberg": (
                "IcebergSink",
                "read_iceberg",
            ),
            "lanemq.pipelines.sinks.parquet": ("ParquetSink",),
            "lanemq.pipelines.sinks.postgres": ("PostgresSink",),
            "lanemq.pipelines.sinks.sqlite": ("SqliteSink",),
            "lanemq.pipelines.sinks.topic": ("TopicSink",),
            "lanemq.pipelines.source": (
                "SourceOptions",
                "Topic",
            ),
            "lanemq.pipelines.stages.cdc.last_state": ("LastState",),
            "lanemq.pipelines.stages.project": ("Project",),
            "lanemq.pipelines.stages.transitions.event_time": ("EventTime",),
            "lanemq.pipelines.stages.transitions.messages": (
                "Event",
                "OnTimer",
                "Step",
            ),
            "lanemq.pipelines.stages.transitions.rules": (
                "DeadLetter",
                "Hold",
                "OnGap",
                "Park",
                "Policy",
                "StateLimits",
            ),
            "lanemq.pipelines.stages.transitions.stage": ("Transitions",),
            "lanemq.pipelines.stages.transitions.timers": (
                "StepContext",
                "Timer",
            ),
        },
        install=install_extra("spark"),
        extra_packages=("pyspark", "pyarrow", "numpy", "deltalake"),
    )
