"""Programs of Sexton and their settings: worker, client, command line, and operations."""

VERSION = "0.1.0"  # a constant, because a look-up of the installed package would be the slowest part of `--version`
