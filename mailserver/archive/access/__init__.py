"""How the files of an archive are reached, to read: in a folder, or on S3."""
