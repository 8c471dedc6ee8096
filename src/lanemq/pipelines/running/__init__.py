"""Runs a pipeline: preflight checks, the runner, one batch after the other, progress."""
