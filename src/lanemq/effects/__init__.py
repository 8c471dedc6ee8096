"""Exactly once into your own database: `once`, and what belongs to it."""

from lanemq.client.consumer.turns.handler import AlreadyApplied as AlreadyApplied
from lanemq.effects.transaction import forget as forget
from lanemq.effects.transaction import forget_async as forget_async
from lanemq.effects.transaction import once as once
from lanemq.effects.transaction import table_definition as table_definition
from lanemq.model.errors import EffectRefused as EffectRefused
from lanemq.model.errors import LeaseLost as LeaseLost

__all__ = ["AlreadyApplied", "EffectRefused", "LeaseLost", "forget", "forget_async", "once", "table_definition"]
