"""Tools for tests: a broker in this process, `TestApp` without one, and the check of order. docs/guides/testing.md.

`plugin` is the pytest plugin. The simulation and the main demonstration are beside them.
"""

from typing import TYPE_CHECKING

from lanemq.model.lazy_names import lazy_names

if TYPE_CHECKING:
    from lanemq.testing.app import AppDeadLetter as AppDeadLetter
    from lanemq.testing.app import TestApp as TestApp
    from lanemq.testing.app import TurnRecord as TurnRecord
    from lanemq.testing.embedded import EmbeddedBroker as EmbeddedBroker
    from lanemq.testing.order import assert_in_order as assert_in_order
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "lanemq.testing.app": ("AppDeadLetter", "TestApp", "TurnRecord"),
            "lanemq.testing.embedded": ("EmbeddedBroker",),
            "lanemq.testing.order": ("assert_in_order",),
        },
    )
