"""Shards to scores: the ALBERT model, its training, evaluation and registry (PyTorch)."""
