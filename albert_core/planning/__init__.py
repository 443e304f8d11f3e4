"""What a run costs, before it is paid for: arithmetic without torch."""
