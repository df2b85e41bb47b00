"""Reproduce claims of papers about trial schedulers, in virtual time: see docs/benchmarks.md."""
