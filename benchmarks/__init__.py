"""Measurements of speed, memory and start-up; `python -m benchmarks` runs them all."""
