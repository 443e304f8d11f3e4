"""Pure functions that turn raw texts into a clean corpus."""
