"""Notes that workers leave in the work folder: what is done, and what files of theirs hold."""
