"""Stages turn the messages of a batch into rows."""
