"""What a reconciliation reads of the catalog in bulk, and the few writes by which an orphan becomes an intent."""
