"""Plans: one call of a host function, recorded once and replayed behind guards.

plan       Plan, its steps, and Refusal: data only
torch_ops  what torch's functions are to a plan: reads, views, allocations, fills
record     one call -> Plan or Refusal
wrapper    Plan -> a Python function; the twin of native plans
planner    whether a call is replayed, recorded, or run as written
outputs    output tensors that are handed out again (`tzero.pool`)
"""
