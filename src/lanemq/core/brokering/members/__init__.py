"""Who is a member of a group, on which connection, and which of them may own queues of a topic."""
