"""What all tests have in common."""

import os

import pytest

# The models here are small: a second thread waits more than it works, and where other processes
# have the cores it makes a test many times slower. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long, so that none is left to run alone at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
