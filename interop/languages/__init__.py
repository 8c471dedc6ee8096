"""Cases for clients in other languages."""
