"""Flow: limits of model providers and pauses, as data that changes while workers run."""
