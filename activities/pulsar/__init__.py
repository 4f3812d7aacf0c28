"""Activities of jobs on a Pulsar cluster."""
