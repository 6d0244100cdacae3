"""Ray: a cluster on this machine, whose nodes are killed."""
