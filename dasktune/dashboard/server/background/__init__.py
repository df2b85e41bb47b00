"""What threads of the server compute beside its loop."""
