"""The parts of a pretraining run: its updates, its start, its log and what it leaves."""
