"""The command `albert`, in `main`, and what its larger commands do, a module each."""
