"""Commands that run, examine or save a server on this machine: broker, console, both, their settings, backups."""
