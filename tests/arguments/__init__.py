"""Host functions, keys, and what an argument contributes to them."""
