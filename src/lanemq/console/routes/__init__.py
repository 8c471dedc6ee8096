"""The requests of each screen; one module per screen."""
