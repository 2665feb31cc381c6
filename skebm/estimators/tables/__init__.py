"""Tables: how the columns of X become rows of an energy, and back."""
