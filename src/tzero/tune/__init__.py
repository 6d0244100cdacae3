"""Which variant of a kernel is the fastest: searched once, remembered, and for new shapes chosen.

::

    space ──Config──► search ──ask──► timing ──seconds──► memory ──best, by key──► select
    what may be       which one       how long            what was                 which one
    tried             comes next      it takes            found                    a call gets
                        ▲               │
                        └─────tell──────┘

Enters: the configs a kernel may have, and calls to time them with. Leaves: for each call a `Choice`
that says why it was made. Each part knows its neighbours by the values that pass between them, and
nothing else of them.
"""
