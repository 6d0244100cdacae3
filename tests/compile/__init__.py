"""The compile service, when nothing goes wrong."""
