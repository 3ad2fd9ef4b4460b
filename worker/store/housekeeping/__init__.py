"""Work that nobody asked for: the sweep, callbacks at the end of an execution, the registry of workers."""
