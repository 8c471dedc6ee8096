"""The calling side of a connection: one link without I/O, and its drivers on a blocking socket or an event loop."""
