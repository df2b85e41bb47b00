"""How good searchers are beside random search: ``python -m benchmarks.search_quality``."""
