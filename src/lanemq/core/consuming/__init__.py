"""The rules of a consumer: which member owns a queue, which lane runs next, what waits after a failure."""
