"""Where bulk jobs read: listings, inventories, tables and segments, part by part."""
