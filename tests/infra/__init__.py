"""How the real systems are reached."""
