"""Runs handlers: which lane runs next, the workers, the handler call and what its result means."""
