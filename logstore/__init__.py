"""Rules, formats, ports and errors of the log. The only third-party imports are pyarrow, numpy and pyroaring."""
