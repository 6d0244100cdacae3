"""A call's arguments, from Python objects to keys.

host          a host function's signature, constants and config parameter
extract       arguments -> raw key, by a function generated for their types
key           values -> Key
constants     values that are part of a key in full
situation     what a plan assumes of the arguments, beyond the key
launch_facts  a launch's arguments -> what selects its binary
tensor_facts  every fact compared of a tensor, and who compares it: a new one is a row there
scalars       types of arguments that contain no other values, and how stages take them
device        the capability of a device
text          keys as text, and the first difference of two keys
"""
