"""The codec splits a state into a head and lists for a store, and joins them again.

Keys and commands of a store do not belong here.
"""
