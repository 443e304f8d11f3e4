"""ALBERT on one page, and what it is made of."""
