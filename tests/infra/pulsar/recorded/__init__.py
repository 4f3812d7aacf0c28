"""Answers of a real broker, and the programs that record them."""
