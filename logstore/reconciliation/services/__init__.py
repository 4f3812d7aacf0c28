"""What storage says of a finding at the moment at which it is to be removed."""
