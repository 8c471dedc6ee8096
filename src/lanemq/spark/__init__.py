"""Topics as tables and streams of Spark: `register(spark)`, then `format("lanemq")`."""

from lanemq.spark.session import recommended
from lanemq.spark.source import register

__all__ = ["recommended", "register"]
