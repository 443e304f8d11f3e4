"""The table of downstream scores: made of fine-tunings, laid out as text, page and picture."""
