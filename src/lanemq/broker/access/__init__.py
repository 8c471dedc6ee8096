"""Who may do what: users, permissions, and the guard in front of the handlers."""
