"""The database interface on a Redis server: connections, round trips, Lua scripts. Only this room imports `redis`."""
