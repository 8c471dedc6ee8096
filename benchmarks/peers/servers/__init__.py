"""Servers on loopback, one file per contender: how each is started, with which settings, and when it is ready."""
