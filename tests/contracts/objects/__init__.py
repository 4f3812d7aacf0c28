"""What every object store must do."""
