"""Client programs, one file per contender. Each runs in a process of its own, in its contender's environment."""
