"""The archive of sessions, as the store uses it: documents, moving, restoring, and reading what has been moved."""
