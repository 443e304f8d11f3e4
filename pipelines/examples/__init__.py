"""Sentences to masked segment pairs, and those to shards."""
