"""Jobs on delayed messages: sealing buckets, and merging them."""
