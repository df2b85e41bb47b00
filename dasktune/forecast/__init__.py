"""What an experiment would have cost under another trial scheduler.

The recorded learning curves of an experiment are replayed through real schedulers in virtual time.
"""
