"""What an operator does with parked keys and dead letters."""
