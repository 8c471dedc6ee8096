"""The independent checker: reads histories, imports nothing of the code that wrote them, and reports violations."""
