"""What a model takes: parameters, operations and memory, counted without building it."""
