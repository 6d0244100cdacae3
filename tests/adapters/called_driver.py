"""Calls Triton's modules for CUDA and their twins in Python alike, on a library that stands in for
libcuda, and prints what it heard of each. Its argument: that library.
"""

import ctypes
import json
import sys
from concurrent.futures import ThreadPoolExecutor

from triton.backends.nvidia import driver as nvidia

from tzero.adapters import triton_driver, triton_modules

library = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)  # it has the name of libcuda
library.heard.restype = ctypes.c_char_p


class Tensor:
    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


SIZES = {"*": 8, "fp": 8, "i1": 1, "u1": 1, "i8": 1, "u8": 1, "nv": 128}
T = Tensor(0x7000)
SIGNATURES = [
    (["*fp32", "i32", "constexpr"], [[T, 7, 64], [T, 2**31, 64], [T, 1.5, 64]]),
    (["*fp32", "*fp16"], [[None, 0x1234], [T, Tensor(0)], [T, object()]]),
    (["*fp32"], [[Tensor(0xBAD)], [Tensor(0xBAD2)], [Tensor("here")], [T]]),
    (["i1", "i1", "u1", "i8", "u8"], [[True, False, True, 5, 250], [1, 1, 1, 255, 2**9 + 3]]),
    (["i8"], [[-1], [256], [127]]),
    (["i16", "u16", "i32", "u32"], [[-3, 65535, -(2**31), 2**32 - 1], [-40000, 1, 1, 1]]),
    (["i64", "u64", "u32"], [[-1, 2**64 - 1, -1], [2**63, 1, 1], [1, -1, 1]]),
    (["fp16", "bf16", "fp32"], [[1.5, 3.14159, 2.71828], [0, -1e300, 1e300]]),
    (["fp64"], [[1e300], ["text"]]),
    (["i64", ("*fp32", "constexpr", ("fp32", "i32"))], [[9, (T, 3, (0.5, 4))]]),
    ([], [[]]),
]
DESCRIBED = (["tensordesc<fp16[64, 32]>"], [{"fp4_padded": False}])
LAUNCHES = [
    ((1, 2, 3), False, False, (4, 1, 0)),
    ((5, 1, 1), True, False, (8, 1, 9000)),
    ((5, 1, 1), False, True, (1, 2, 0)),
    ((5, 1, 1), True, True, (1, 16, 0)),
    ((0, 1, 1), True, True, (4, 1, 0)),
]


def sizes(types):
    for each in types:
        if isinstance(each, tuple):
            yield from sizes(each)
        elif each != "constexpr":
            yield SIZES.get(each) or SIZES.get(each[0]) or int(each.lstrip("biuf p")) // 8


def outcome(function, *args):
    """What a call returned or raised, and what the library heard."""
    library.forget()
    try:
        result = function(*args)
    except Exception as error:
        result = type(error).__name__ if type(error) is not OverflowError else "overflow"
        if isinstance(error, RuntimeError):
            result += f": {error}"
    return [told(result), library.heard().decode()]


def told(result):
    return result if isinstance(result, (int, str, list, tuple, dict, type(None))) else "an object"


def of_launcher(launch, types, values):
    held = [*sizes(types), 8, 8, 0]
    library.take_sizes((ctypes.c_int * len(held))(*held), len(held))
    found = []
    for grid, cooperative, dependent, numbers in LAUNCHES:
        hooked = []
        scratch = (Tensor(0x9000), None) if cooperative else (None, 0xA000)
        hooks = (hooked.append, hooked.append) if dependent else (None, None)
        function = 0xBAD if numbers[1] == 2 else 0x3000
        start = (*grid, 0x77, function, cooperative, dependent, *scratch, numbers, "metadata")
        found.append([outcome(launch, *start, *hooks, *values), hooked])
    return found


def of_functions(functions):
    fill = functions.fill_tma_descriptor
    return [
        outcome(functions.get_device_properties, 1),
        outcome(functions.load_binary, "name", b"a cubin", 0, 1),
        outcome(functions.load_binary, "name", b"a cubin", 100_000, 0),
        outcome(functions.load_binary, "name", b"broken", 0, 0),
        outcome(functions.cuOccupancyMaxActiveClusters, 0x3000, 4096, 4),
        outcome(functions.set_printf_fifo_size, 1 << 21),
        outcome(functions.set_printf_fifo_size, 1 << 20),  # the size that it has
        outcome(functions.set_printf_fifo_size, -1),
        outcome(fill, 0x5000, 3, 2, 6, [64, 32], [512, 300], [300, 1], 1),
        outcome(fill, 0x5000, 0, 4, 7, [64], [512], [1], 0),
        outcome(fill, 0x5000, 1, 1, 0, [8, 16, 32], [2, 3, 4], [12, 4, 1], 0),
        outcome(fill, 0x5000, 1, 1, 0, [8, 16], [2, 3, 4], [4, 1], 0),
    ]


def of_descriptors(launch, functions):
    """A launch with a descriptor that these functions have made."""
    held = [128, 4, 4, 8, 8, 8, 8, 0]
    library.take_sizes((ctypes.c_int * len(held))(*held), len(held))
    made = functions.fill_tma_descriptor(0x5000, 3, 2, 6, [64, 32], [512, 300], [300, 1], 1)
    start = (1, 1, 1, 0, 0x3000, False, False, None, None, (4, 1, 0), None, None, None)
    right = outcome(launch, *start, made, 512, 300, 300, 1)
    return [right, outcome(launch, *start, "no map", 512, 300, 300, 1)]


def modules():
    """Triton's modules, built here: the functions, and the launcher of each signature."""
    every = [(types, None) for types, _ in SIGNATURES] + [DESCRIBED]
    texts = [triton_modules.sources(*each) for each in every]
    asked = [texts[0][0], *(each[1] for each in texts)]
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda each: triton_modules.build(*each), asked))
    functions = triton_modules._loaded("cuda_utils", built[0])
    nvidia.PyCUtensorMap = functions.PyCUtensorMap  # launchers read it when they are imported
    launchers = [triton_modules._loaded("__triton_launcher", each) for each in built[1:]]
    return functions, launchers


if __name__ == "__main__":
    theirs, launchers = modules()
    ours = triton_driver.driver_functions()
    heard = [[of_functions(theirs), of_functions(ours)]]
    for (types, values), module in zip(SIGNATURES, launchers, strict=False):
        twin = triton_driver.launcher(types)
        heard.append(
            [
                [of_launcher(each.launch, types, given) for given in values]
                for each in (module, twin)
            ]
        )
    twin = triton_driver.launcher(*DESCRIBED)
    pairs = ((launchers[-1], theirs), (twin, ours))
    heard.append([of_descriptors(each.launch, functions) for each, functions in pairs])
    print(json.dumps(heard))
