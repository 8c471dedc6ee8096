"""The whole system in one thread, on virtual time, from one seed: broker, producers and consumers as shipped,
with sockets, clocks, disk, log thread and randomness replaced."""
