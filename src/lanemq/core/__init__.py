"""The rules of ordered messaging as pure state machines: time comes in, decisions come out."""
