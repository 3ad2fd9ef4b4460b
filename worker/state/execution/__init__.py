"""One run of an agent: its status, steps, tool calls, stop signals, budget and usage."""
