"""Where it runs: names entry points, and is imported by nobody."""
