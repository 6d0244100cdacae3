"""A call's arguments, from Python objects to keys.

host          a host function's signature, constants and config parameter
extract       arguments -> raw key, by a function generated for their types
key           values -> Key
constants     values that are part of a key in full
situation     what a plan assumes of the arguments, beyond the key
launch_facts  a launch's arguments -> what selects its binary
device        the capability of a device
text          keys as text, and the first difference of two keys
"""
