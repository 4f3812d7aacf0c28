"""What is deployed beside the code."""
