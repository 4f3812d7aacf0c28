"""The embedded servers: started, health-checked and stopped on this machine's loopback interface."""
