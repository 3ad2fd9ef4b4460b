"""Children in the store: how they are made, how their ends reach their parents, and how a tree is read.

A child is a session like any other, with a `parent` field that says which request of which step it answers. Decisions
about children belong to the engine.
"""
