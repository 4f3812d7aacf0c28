"""Activities on delayed messages."""
