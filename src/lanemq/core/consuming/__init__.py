"""The rules of a consumer: who owns a queue, whose turn it is, what a failure holds."""
