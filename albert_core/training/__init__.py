"""Pretraining: shards to batches, an update, checkpoints, ranks, and what a run leaves."""
