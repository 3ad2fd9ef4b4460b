"""What a step is: agents, their state, where it is stored, and the engine that carries one step through."""
