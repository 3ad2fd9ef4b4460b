"""Jobs that every worker does besides its steps: registration, sweep, callbacks, pruning.

Reading for people and supervisors belongs to `observability`; the transactions themselves belong to the store.
"""
