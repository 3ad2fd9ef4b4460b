"""Metrics, traces, Flower, health and doctor: what people and supervisors read of a worker.

Nothing here changes a session; a worker runs the same without it.
"""
