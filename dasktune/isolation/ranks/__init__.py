"""Distributed trials: the processes of one trial on several workers, called ranks."""
