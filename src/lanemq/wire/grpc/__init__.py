"""The messages of RocketMQ 5's gRPC protocol: a table of facts, and the codec that reads and writes by it."""
