"""Clients: submit jobs, follow them and act on sessions.

Services import this room; the engine's runner and the consumer do not belong here.
"""
