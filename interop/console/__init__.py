"""The console, against the broker that `--backend` names."""
