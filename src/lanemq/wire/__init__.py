"""Bytes to values and back: RocketMQ's remoting protocol, without a socket in sight."""
