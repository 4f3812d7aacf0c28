"""What the log is: vocabulary, rules, formats, ports and errors. Pure; of vendors only pyarrow, numpy, pyroaring."""
