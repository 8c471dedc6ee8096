"""The rules of a send: which queue, in which order, what a failure freezes."""
