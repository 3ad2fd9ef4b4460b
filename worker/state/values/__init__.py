"""The base of all values of the state: `Value`, field types, ids, frozen JSON.

Nothing here knows messages, steps or agents.
"""
