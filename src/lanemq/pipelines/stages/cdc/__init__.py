"""Change data capture: a table that follows its source, one row per key."""

from lanemq.pipelines.stages.cdc.last_state import LastState

__all__ = ["LastState"]
