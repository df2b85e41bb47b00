"""How fast dasktune is, measured: see docs/benchmarks.md."""
