"""Conformance suite: the same cases with several clients, against LaneMQ's broker and Apache RocketMQ."""
