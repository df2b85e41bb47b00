"""The journal: every event and action of an experiment as JSON lines, in numbered segments.

It stores records of any content; ``dasktune.runner`` defines and replays them.
"""
