"""Which examples an update has, and in what form they reach the model."""
