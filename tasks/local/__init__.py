"""Processes on one machine: an embedded Redis, workers and Flower as child processes.

The worker's own parts belong to `consumer`.
"""
