"""The table of downstream scores: collected from fine-tunings, as text and as a page."""
