"""The cases. All run at the same time on one broker, each with its own topics and groups."""
