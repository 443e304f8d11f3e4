"""ALBERT on one page, and what it is made of."""

import os

# oneDNN keeps what it compiled for the shapes of the last 1,024 products. Those of packed batches
# hardly recur, but what is kept takes hundreds of megabytes. A batch needs fewer than these.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
