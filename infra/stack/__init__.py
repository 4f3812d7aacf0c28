"""Start, health checks and stop of the embedded servers on this machine's loopback interface."""
