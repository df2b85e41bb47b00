"""Pages of a directory with several experiments: the list of them, and their comparison."""
