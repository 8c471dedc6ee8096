"""Sends messages: producers, blocking and asyncio, over one engine."""
