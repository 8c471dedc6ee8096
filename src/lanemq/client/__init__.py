"""What runs in the user's process: producers, consumers, administration."""
