"""The command line as a user runs it: processes, exit codes, JSON."""
