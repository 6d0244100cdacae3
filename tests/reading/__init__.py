"""What is read from the source and bytecode of a host function."""
