"""Moving a store's envelopes into another store, and comparing both by their message ids."""
