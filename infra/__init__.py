"""How a real system is reached (adapters) and how it is run (stack)."""
