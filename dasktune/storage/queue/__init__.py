"""A queue of experiments: a directory that holds experiments until a driver can run them."""
