"""Receives messages: from the assignment of a queue to the handler and the commit."""
