"""In-memory stand-ins for the ports, held to the same contract suites as the real adapters."""
