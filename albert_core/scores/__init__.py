"""Scores on minimal pairs without fine-tuning, and all scores as one table."""
