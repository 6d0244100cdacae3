"""What a host function reads besides its arguments, and the guards on it.

Two readers find that. One reads the code before it runs, and guards every name in it:

dependencies  a host function -> the guards on all that it reads
names         bytecode -> the globals, closure variables, imports and attributes that it loads
values        a value that is read -> guards
classes       classes of the program -> their methods, and one guard for all
findings      what those three have found so far

The other follows one call, where the first cannot, and guards what the call reads on its path:

path          the frames and instructions of a call
steps         an instruction -> what it reads, stores or calls
called        a call -> followed, pure, or a reason not to replay; cached: of `functools.cache`
special       functions that read one thing; imports: of modules; probes: `tzero.constant`
hooks         of modules of `torch.nn`
world         a read of an object that was there before the call -> guards
known         the objects that it has met; contents: reads of all that one contains

Both use:

guards        Same, Equal, Absent, Check and others
kinds         kinds of values, by how a guard can watch them
purity        which library functions have side effects or are nondeterministic
attributes    which functions run when an attribute is read, and whether classes have changed
bytecode      which instruction belongs to which expression of the source
forwarded     parameters that are only passed on to launches
"""
