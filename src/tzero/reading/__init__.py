"""What a host function reads, found from its code before it runs.

bytecode      which instruction belongs to which expression of the source
forwarded     parameters that are only passed on to launches
attributes    what runs when an attribute is read
purity        which library functions have side effects or are nondeterministic
dependencies  globals, closures and attributes -> guards
"""
