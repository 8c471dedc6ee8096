"""A mirror between LaneMQ and another broker, killed again and again."""
