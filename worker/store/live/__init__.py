"""Live text: writing it while steps run, and following it together with the events of a session.

Nothing here is read or written by a transaction of a step; `docs/protocol.md`, "Live text", has the rules.
"""
