"""LaneMQ beside what a Python user would pick instead: `make bench-peers` (see docs/architecture.md, "Benchmarks")."""
