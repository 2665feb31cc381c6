"""Deep models: machines and networks of several layers of hidden units."""
