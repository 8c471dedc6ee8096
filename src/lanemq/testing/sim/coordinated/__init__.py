"""The second shape: message brokers without rules, whose logs are truncated and grow again, beside a coordinator."""
