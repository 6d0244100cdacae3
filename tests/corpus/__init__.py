"""Host functions of public projects, called with and without tzero."""
