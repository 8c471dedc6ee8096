"""Spark pipelines against the brokers of the suite."""
