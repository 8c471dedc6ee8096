"""The claims. Each runs on its own topics and groups, beside all the others, on one broker."""
