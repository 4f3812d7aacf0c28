"""Whether the stores and the namespace that the settings name are the catalog's."""
