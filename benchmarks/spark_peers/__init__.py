"""LaneMQ's source beside Spark's Kafka source, in one Spark session: `make bench-spark-peers`."""
