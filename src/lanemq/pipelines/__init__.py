"""Pipelines on Spark: messages in, rows in a table out, every key in order, every effect once."""
