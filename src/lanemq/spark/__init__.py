"""Reads and writes topics as tables and streams in Spark: `register(spark)`, then `format("lanemq")`."""

from lanemq.model.environment import install_extra

try:
    from lanemq.spark.lag import LagListener, QueueLag, lag_of
    from lanemq.spark.session import recommended
    from lanemq.spark.source import register
except ModuleNotFoundError as missing:
    package = (missing.name or "").partition(".")[0]
    if package in ("pyspark", "pyarrow", "numpy"):
        message = f"lanemq.spark needs {package}: {install_extra('spark')}"
        raise ModuleNotFoundError(message, name=package) from missing
    raise

__all__ = ["LagListener", "QueueLag", "lag_of", "recommended", "register"]
