"""Values that go into the catalog and out of it."""
