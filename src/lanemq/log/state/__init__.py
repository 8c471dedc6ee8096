"""Small state: the SQLite file `state.db`, the second copy of what must survive its loss, and space for both."""
