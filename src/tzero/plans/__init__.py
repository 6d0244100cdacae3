"""Plans: one call of a host function, recorded once and replayed behind guards.

plan       Plan, its steps, and Refusal: data only
planner    whether a call is replayed, recorded, or run as written
record     one call -> Plan or Refusal; what a plan may not contain is refused here
torch_ops  what torch's functions are to a plan: reads, views, allocations, fills
values     Python values as plans hold them
frames     the stack under a recording: where the host function is, and whose code runs
table      who owns plans: kept, replaced, ended
wrapper    Plan -> a Python function; the twin of native plans
describe   Plan -> numbers and objects for native code
outputs    output tensors that are handed out again (`tzero.pool`)
"""
