"""What every worker does beside its steps: sweep, callbacks, registration."""
