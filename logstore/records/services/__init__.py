"""Services of the record log, which use the ports of the catalog and of object storage."""
