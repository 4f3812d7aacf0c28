"""The contracts of the code, written down for programs that do not import it."""
