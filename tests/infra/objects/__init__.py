"""The S3 adapter before a scripted peer."""
