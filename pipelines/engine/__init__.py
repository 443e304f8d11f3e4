"""Where the steps of a text stage run, and what they leave there. It changes no result."""
