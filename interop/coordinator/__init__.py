"""A coordinator beside a real Apache RocketMQ broker, with members that are killed."""
