"""What is written of the code, by the code."""
