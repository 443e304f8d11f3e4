"""Runs the steps of a text stage on an engine, without an influence on its result."""
