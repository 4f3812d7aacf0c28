"""Services of the record log. They use the ports of the catalog and of object storage."""
