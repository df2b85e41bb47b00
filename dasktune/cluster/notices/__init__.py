"""Notices of preemption for workers, on behalf of a person or a program.

It imports nothing.
"""
