"""The log: entries, the ledgers that hold them, and how a process appends and reads them."""
