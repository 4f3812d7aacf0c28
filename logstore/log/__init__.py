"""Log of a topic: entries, ledgers, the format of segments, and services that append and read entries."""
