"""One module for each subcommand, with ``add_arguments(parser)`` and ``run(arguments)``."""
