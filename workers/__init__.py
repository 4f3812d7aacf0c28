"""The roof: settings, wiring, worker fleet, client and command line."""

VERSION = "0.1.0"  # a constant, for to ask the installed package takes longer than all else that `--version` does
