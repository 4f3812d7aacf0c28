"""Reference of the workflows, generated from the code for programs that do not import it."""
