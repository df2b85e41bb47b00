"""Access to filesystems with fsspec: paths, streams, retries, temporary directories, redaction.

It does not depend on checkpoints or the journal.
"""
