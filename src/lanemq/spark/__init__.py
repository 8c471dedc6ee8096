"""Reads and writes topics as tables and streams in Spark: `register(spark)`, then `format("lanemq")`.

The public names are imported on first use: Spark's Python workers import this package, and need none of them.
"""

from typing import TYPE_CHECKING

from lanemq.model.environment import install_extra
from lanemq.model.lazy_names import lazy_names

if TYPE_CHECKING:
    from lanemq.spark.lag import QueueLag as QueueLag
    from lanemq.spark.lag import lag_of as lag_of
    from lanemq.spark.lag_listener import LagListener as LagListener
    from lanemq.spark.session import recommended as recommended
    from lanemq.spark.source import register as register
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "lanemq.spark.lag": ("QueueLag", "lag_of"),
            "lanemq.spark.lag_listener": ("LagListener",),
            "lanemq.spark.session": ("recommended",),
            "lanemq.spark.source": ("register",),
        },
        install=install_extra("spark"),
        extra_packages=("pyspark", "pyarrow", "numpy"),
    )
