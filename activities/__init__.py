"""Activities of workflows. Each has one side effect through ports, and may safely run twice."""
