"""What each screen shows, computed without I/O; one module per screen."""
