"""The driver as a fenced member of a consumer group."""
