"""Copies topics to another broker or cluster, in order and once each, and moves groups over (`lanemq mirror`)."""

from lanemq.mirror.copying import Mirror as Mirror
from lanemq.mirror.copying import MirrorOptions as MirrorOptions
from lanemq.mirror.copying import MirrorReport as MirrorReport
from lanemq.mirror.cut_over import CutOver as CutOver
from lanemq.mirror.cut_over import CutOverStep as CutOverStep
from lanemq.mirror.cut_over import unseal as unseal
from lanemq.mirror.positions import Moved as Moved
from lanemq.mirror.positions import translate as translate
from lanemq.mirror.verifying import Comparison as Comparison
from lanemq.mirror.verifying import compare as compare

__all__ = [
    "Comparison",
    "CutOver",
    "CutOverStep",
    "Mirror",
    "MirrorOptions",
    "MirrorReport",
    "Moved",
    "compare",
    "translate",
    "unseal",
]
