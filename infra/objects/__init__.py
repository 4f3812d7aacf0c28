"""Object store over S3 and compatible stores."""
