"""Registered models: versions, the gate to champion, and the code that serves them."""
