"""The `lanemq` command."""
