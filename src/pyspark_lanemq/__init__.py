"""Lets Spark find `format("lanemq")` without `register`: it imports every module whose name begins with `pyspark_`.

If such an import fails, Spark refuses every Python source of the session. So a missing package is no error here: Spark
does not find the source then, and `lanemq.spark.register` says what is missing.
"""

import contextlib

with contextlib.suppress(ImportError):
    from lanemq.spark.source import LaneDataSource as DefaultSource

__all__ = ["DefaultSource"]
