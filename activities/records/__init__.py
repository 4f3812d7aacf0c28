"""Activities of the record log: flushes, defragmentation, raids, replicas, rebuild, and record functions."""
