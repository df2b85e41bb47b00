"""How good searchers are compared with random search: ``python -m benchmarks.search_quality``."""
