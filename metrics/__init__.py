"""Metrics: the catalogue, cells in shared memory that survive a SIGKILL, and the exposition."""
