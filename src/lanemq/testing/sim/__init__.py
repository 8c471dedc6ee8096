"""A simulation of the whole system in one thread, on virtual time, that follows from one seed.

Broker, producers and consumers are the shipped ones. Sockets, clocks, disk, disk threads and randomness are replaced.
"""
