"""The envelope store in a PostgreSQL database, which several mailservers may share."""
