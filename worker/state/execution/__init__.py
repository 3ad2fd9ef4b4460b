"""One execution of an agent: its status, steps, signals, budget, usage, and tool calls.

The messages that its steps add belong to `conversation`.
"""
