"""The serving side: connections that a server accepts, their slices of the event loop, and the monitor's port."""
