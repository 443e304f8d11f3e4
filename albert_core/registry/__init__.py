"""Registered models: versions, the gate to champion, and what serves them."""
