"""Lets Spark find `format("lanemq")` without `register`: it imports every module whose name begins with `pyspark_`.

Spark does so in every application that uses any Python source, and refuses all of them if one import fails. So this
module imports nothing of LaneMQ before a query uses the format.
"""

from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Stands for `LaneDataSource` until Spark makes one."""

    @classmethod
    def name(cls) -> str:
        return "lanemq"

    def __new__(cls, *args: Any, **options: Any) -> Any:
        from lanemq.spark import register  # noqa: F401 - names a package that is missing
        from lanemq.spark.source import LaneDataSource

        return LaneDataSource(*args, **options)
