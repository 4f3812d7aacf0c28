"""The house style, held by reading the source."""
