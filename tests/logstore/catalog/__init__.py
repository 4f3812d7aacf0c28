"""What only the SQL catalog promises: migrations, contention, faults of the database."""
