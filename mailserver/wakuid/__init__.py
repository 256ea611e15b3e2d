"""The capability `wakuid/1`: lists message ids, gives envelopes by id, and compares what two sides have. Pure."""
