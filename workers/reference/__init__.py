"""What is written down of the code for programs that do not import it."""
