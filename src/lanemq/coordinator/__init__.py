"""The coordinator of groups on an Apache RocketMQ cluster: leases, offsets and lanes; messages stay at the brokers."""
