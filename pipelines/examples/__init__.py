"""Sentences to masked segment pairs, and pairs to shards."""
