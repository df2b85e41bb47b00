"""What an experiment has gone through, as figures and as a report."""
