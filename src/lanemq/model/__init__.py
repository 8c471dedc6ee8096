"""Values that every layer uses: queues, names, units, errors."""
