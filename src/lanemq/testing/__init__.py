"""Tools for tests: the embedded broker, faulty disks, the simulation, and the main demonstration."""
