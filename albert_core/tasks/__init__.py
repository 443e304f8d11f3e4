"""Downstream tasks: their files, their examples, inputs, heads and scores."""
