"""A state machine over fakes: orders of events that nobody thought of, judged by an auditor of its own."""
