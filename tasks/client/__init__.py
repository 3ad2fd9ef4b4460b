"""What services use: hand over jobs, follow them, act on sessions. Imports no worker code."""
