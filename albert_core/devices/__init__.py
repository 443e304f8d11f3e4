"""Many devices: which there are, state cut over ranks, TPUs."""
