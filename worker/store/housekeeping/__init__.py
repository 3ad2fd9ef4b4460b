"""Housekeeping: the sweep, callbacks at the end of an execution, the registry of workers, the number of shards."""
