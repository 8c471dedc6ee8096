"""Access control: users, the permissions that requests need, and the guard that checks them."""
