"""`lanemq grpc`: lets RocketMQ 5's gRPC clients use LaneMQ's lanes (docs/decisions/0046-grpc-front.md).

It is a program beside the broker, and to the broker an ordinary client: one producer, and one member for each group
whose clients are here. The rules are in `core/fronting`, the messages of the protocol in `wire/grpc`.
"""
