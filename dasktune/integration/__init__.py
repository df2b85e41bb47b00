"""What other packages need to be used in trials, or to hear of them.

Each module is for one package, which it imports when it is used.
"""
