// Whether calls may be replayed natively now.
#pragma once

#include "python.h"

#include "kernel.h"
#include "state.h"
#include "tensors.h"

namespace tzero {

// Whether calls may be replayed natively now: there is no observer, measurement or recording, and
// no mode of torch that changes what calls do.
Answer is_ours(State &state, const Modes &modes);

}  // namespace tzero
