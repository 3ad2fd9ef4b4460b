"""The capabilities behind `state.smart`: what a long task needs to keep its course and its size.

The names are those of Cognipeer's agent SDK; see docs/coverage.md.

Each is made of what the capabilities of users can use, too. Its module has its parts and its events; `smart_state`
shows those of all.
"""
