"""What all tests have in common."""

import os

# The models here are small: a second thread waits more than it works, and where other processes
# have the cores it makes a test many times slower. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
