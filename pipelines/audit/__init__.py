"""Looks at example shards, whoever wrote them: what is in them against what should be."""
