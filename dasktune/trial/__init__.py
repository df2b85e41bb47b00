"""What a trial is: its status, what can happen to it, what can be done with it."""
