"""Whether it is true."""
