"""The compile service, when something goes wrong: what breaks, what the caller sees."""
