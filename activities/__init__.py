"""Activities of workflows: the steps with side effects. Each activity may safely run twice."""
