"""The data folder as a whole: its lock, whether it is complete, backups, and its examination."""
