"""One file per family of requests; none knows another."""
