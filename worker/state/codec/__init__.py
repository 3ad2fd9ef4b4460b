"""The state in parts for a store, and back."""
