"""ALBERT on one page, what it is made of, and its losses."""
