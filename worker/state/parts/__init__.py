"""Parts: what capabilities keep in the state, as typed values and as lists that only grow.

`state_part` and `list_part` hold the base classes that a capability derives from, `storage` holds the form in which
parts of any capability, known here or not, stand in the state. The use that a capability makes of its parts does not
belong here.
"""
