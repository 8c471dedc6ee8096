"""Every transition: a step per event, every key in order, each event once."""
