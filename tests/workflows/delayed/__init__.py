"""Jobs on delayed messages."""
