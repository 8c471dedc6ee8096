"""`lanemq pipeline`: run, check, status, parked keys and dead letters."""
