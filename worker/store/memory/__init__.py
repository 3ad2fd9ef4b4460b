"""The database interface in memory, for tests and simulations."""
