"""Activities of workflows. Each activity has one side effect through ports, and may safely run twice."""
