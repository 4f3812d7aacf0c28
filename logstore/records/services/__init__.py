"""Services of the record log, over the ports of catalog and objects."""
