"""The results of a trial in memory: the newest ones as they came, older ones packed."""
