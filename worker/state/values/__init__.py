"""The base of all state values: immutability, JSON, field types, ids, errors as data."""
