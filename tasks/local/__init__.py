"""Everything on one machine: an embedded Redis, workers and Flower as child processes."""
