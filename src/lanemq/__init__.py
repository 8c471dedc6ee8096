"""LaneMQ: ordered messaging for Python. Every key has its lane; nothing overtakes."""
