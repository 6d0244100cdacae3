"""Choosing the config of a kernel: the fastest one is searched for once, remembered, and reused.

::

    a first call                                                       later calls
         │                                                                  ▲
       decide ── is it known? ── shipping: a file of `tzero.pretuned` ──────┤
         │                    ├─ records: the local cache ──────────────────┤  Choice
         │                    └─ hints, by_size, select: the nearest shape ─┤
         │ no                                                               │
     kernel_search ── tuner: one search ── best config ── records: kept ────┘
                        │  ▲
             configs    │  │  Outcome: seconds, or a problem
                        ▼  │
      space ── search   trial: copying ── compare ── timing
      all configs       or isolated ── transfer ── child: the same in another process
      └ which is next

==================================  ================================================================
decide                              chooses the config of a bound kernel
facts, source                       the keys of a choice: source digest, arguments, hardware
turn, notices                       when timing is possible; events and warnings
background, later                   searches that no call waits for, and how they replace a config
shipping, records                   files that ship, and the local cache
hints, by_size, resize, select      size hints: resized arguments, and the nearest hint of a call
kernel_search                       one search of one kernel: compiles, times, remembers
space, search                       which configs there are, and which one is timed next
tuner, progress, plot, seconds      the loop of a search; its progress bar, picture and units
rounds                              the fastest, timed again: noise does not decide
outcome                             what is known of one config, and which config is the best
trial, copying, compare, timing     one config: run on copies, compared, timed
failures                            whether a failure is the config's own, and remembered
isolated, child, transfer           the same in a process of its own
elsewhere                           a search by an executor of `tzero.compile.on`
==================================  ================================================================

Enters: the configs that a kernel may have, and the arguments of calls. Leaves: for each call a
`Choice` of a config, with the reason. It must not know how calls are dispatched or replayed.
"""
