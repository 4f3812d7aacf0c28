"""Activities of the record log: flushes, defragmentation, raids, shipments, rebuild, and record functions."""
