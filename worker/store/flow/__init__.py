"""Limits, pauses, and reservations of requests to model providers."""
