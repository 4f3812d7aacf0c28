"""Programs of Sexton and their settings: worker, client, command line, and operations."""

VERSION = "0.1.0"  # a constant, because asking the installed package takes longer than all else that `--version` does
