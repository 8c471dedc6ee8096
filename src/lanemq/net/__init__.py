"""Sockets: the only place where bytes meet the network."""
