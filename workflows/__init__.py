"""Durable jobs. A workflow decides the order of a job's steps, and what happens after a failed step."""
