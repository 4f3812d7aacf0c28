"""The roof: settings, assembly, worker hosting, client, operations and command line."""

VERSION = "0.1.0"  # a constant, because asking the installed package takes longer than all else that `--version` does
