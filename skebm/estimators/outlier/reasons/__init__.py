"""Which columns make a row anomalous, in nats, in words and beside each other."""
