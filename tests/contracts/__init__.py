"""One suite per port, over the fake and over the real thing."""
