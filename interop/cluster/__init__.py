"""A real Apache RocketMQ cluster on loopback, whose processes are killed and frozen under load."""
