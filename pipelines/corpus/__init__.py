"""Pure: what happens to a text on its way to a clean corpus."""
