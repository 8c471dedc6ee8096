"""One file per noun of the `lanemq` command."""
