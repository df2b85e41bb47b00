"""Benchmarks of dasktune: see docs/benchmarks.md."""
