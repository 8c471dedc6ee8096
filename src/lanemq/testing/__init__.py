"""Shipped for our tests and for yours: embedded broker, fakes, the main demonstration."""
