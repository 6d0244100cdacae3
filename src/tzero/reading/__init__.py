"""What a host function reads, found from its code before it runs.

dependencies  a host function -> the guards on all that it reads besides its arguments
names         bytecode -> the globals, closure variables, imports and attributes that it loads
values        a value that is read -> guards
classes       classes of the program -> their methods, and one guard for all
findings      what those three have found so far
guards        Same, Equal, Absent, Check
kinds         kinds of values, by how a guard can watch them
purity        which library functions have side effects or are nondeterministic
attributes    which functions run when an attribute is read, and whether classes have changed
bytecode      which instruction belongs to which expression of the source
forwarded     parameters that are only passed on to launches
"""
