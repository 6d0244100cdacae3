// Whether calls may be replayed natively now.
#pragma once

#include "python.h"

#include "kernel.h"
#include "state.h"
#include "tensors.h"

namespace tzero {

// Whether calls may be replayed natively now: there is no observer and no recording, and no mode of
// torch that changes what calls do. Finds the open record of `tzero.measure`, too.
Answer is_ours(State &state, const Modes &modes);

}  // namespace tzero
