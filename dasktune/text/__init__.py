"""Plain text for terminals, reports and messages: values, durations, configurations and tables.

Escape sequences and other control characters in user text are replaced here. Texts that depend on
trials, events or storage are written where those are known, not here.
"""
