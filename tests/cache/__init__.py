"""The cache: damaged entries, many writers, broken disks, a real redis, the command line."""
