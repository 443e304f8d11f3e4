"""How to run the text stages on each Beam engine: see README.md."""
