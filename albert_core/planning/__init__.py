"""The cost of a run in advance: arithmetic without torch."""
