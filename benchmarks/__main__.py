from __future__ import annotations

from benchmarks.throughput import main

if __name__ == "__main__":
    main()
