"""Downstream tasks: read their files, say their labels and their metric."""
