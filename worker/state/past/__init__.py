"""The past of a state: which old values a save has to keep, and the state at a committed step from these.

Keys and commands of a store do not belong here.
"""
