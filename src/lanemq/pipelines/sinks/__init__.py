"""The sinks of a pipeline: each applies a batch once, even if it is repeated or an older run is still writing."""
