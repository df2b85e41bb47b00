"""What the papers claim of the trial schedulers, in virtual time: see docs/benchmarks.md."""
