"""Plain text for terminals, reports and messages: values, durations, configurations and tables.

Escape sequences and other control characters in user text are replaced here. Texts that need
trials, events or the storage are made elsewhere.
"""
