"""What people and machines look at: metrics, traces, Flower, health, doctor."""
