"""Conformance on the real thing: one suite, several clients, LaneMQ's broker and Apache RocketMQ's."""
