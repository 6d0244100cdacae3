from collections.abc import Callable
from types import CodeType, FrameType, MappingProxyType
from typing import Any, Final, Self, final

# Limits
MOST_ARGUMENTS: Final[int]  # of a call of torch in a plan
MOST_PARAMETERS: Final[int]  # of a launch, with its options
MOST_MAPS: Final[int]  # tensor maps of a kernel on CUDA
MOST_SLOTS: Final[int]  # tensors in a plan
MOST_FORMULAS: Final[int]  # of a plan over sizes
MOST_HINTS: Final[int]  # of Nearest
MOST_DIMS: Final[int]  # of a hint, all tensors together
STEPS_PER_DOUBLING: Final[int]  # in which Nearest counts log2 of a size
HEAD_BYTES: Final[int]  # before the parameters of a CPU kernel
PARAMETER_BYTES: Final[int]  # of the widest parameter but a tensor map
MAP_BYTES: Final[int]  # of a tensor map
MAP_ALIGNMENT: Final[int]  # in a block of parameters

# Enums: names and numbers
DEVICE_TYPES: Final[MappingProxyType[str, int]]
PARAMETER_TYPES: Final[MappingProxyType[str, int]]
VALUE_KINDS: Final[MappingProxyType[str, int]]
GUARD_KINDS: Final[MappingProxyType[str, int]]
STEP_KINDS: Final[MappingProxyType[str, int]]
SIZE_OPERATIONS: Final[MappingProxyType[str, int]]
SIZE_COMPARISONS: Final[MappingProxyType[str, int]]
SIZE_SOURCES: Final[MappingProxyType[str, int]]
STAGES: Final[MappingProxyType[str, int]]
LOOKS: Final[MappingProxyType[str, int]]

# What the `step` of a Follower answers, added up
GOES_ON: Final[int]
AWAITS: Final[int]
SEES_LIBRARIES: Final[int]

def version() -> str: ...
def configure(
    *,
    tensor: type,
    parameter: type,
    exchange_api: object,
    knobs: dict[str, Any],
    more_knobs: tuple[str, ...],
    hook_chain: type,
    runtime_knobs: type,
    driver: object,
    driver_slot: str,
    events: dict[str, Any],
    observers: str,
    watched: object,
    log_cache: dict[int, bool],
    debug_level: int,
    get_num_threads: object,
    launch_failed: type[Exception],
    cuda_driver: type,
    constexpr: type,
    current: object,
    const_expr: type,
    callable: type,
    descriptor: type | None,
    size: type,
    subscripts: object,
    partial: type,
    lookalike: object,
    dtype: type,
    device: type,
    handle: int,
    storage: int,
) -> None: ...
def open_cuda() -> bool: ...
def open_torch() -> str: ...
def configure_plans(
    *,
    dtype: type,
    layout: type,
    memory_format: type,
    device: type,
    size: type,
    measure: dict[str, Any],
    key_set: int,
    plain_keys: int,
    plain_included: int,
    plain_excluded: int,
    settings: dict[str, Any],
    ready: bool,
    storage: int,
    gradients: int,
    makes_views: bool,
    view_key: int,
    keys_of_views: int,
) -> None: ...
def configure_graphs(
    *,
    settings: dict[str, Any],
    watched: Callable[[], str],
    tell: Callable[[str, str], object],
    modules: dict[str, Any],
    profilers: dict[str, Any] | None,
) -> None: ...
def graphs() -> tuple[int, int, int, int, str]: ...
def drop_graphs() -> None: ...
def open_profilers() -> str: ...
def configure_profilers(range: object, /) -> None: ...
def profilers_look() -> tuple[bool, bool]: ...
def torch_modes() -> tuple[int, int, bool, bool, int, int]: ...
def tensor_words(tensor: object, /) -> tuple[int, ...] | None: ...
def tensor_version(tensor: object, /) -> int: ...
def bump_version(tensor: object, /) -> None: ...
def rings() -> bool: ...
def has_tangent(tensor: Any, /) -> bool: ...
def makes_views() -> bool: ...
def strided_view(
    tensor: object, size: tuple[int, ...], stride: tuple[int, ...], offset: int, /
) -> Any: ...
def packed(type: int, value: object, /) -> bytes | None: ...
def recording(delta: int, /) -> int: ...
def frame_operands(
    frame: FrameType, depth: int, count: int, empty: object, /
) -> tuple[Any, ...]: ...
def frame_function(frame: FrameType, /) -> Any: ...
def size_class(value: int, /) -> int: ...
def computed_sizes(
    inputs: tuple[int, ...],
    nodes: tuple[tuple[int, int, int], ...],
    conditions: tuple[tuple[int, int, int, bool], ...],
    /,
) -> tuple[int, ...] | None: ...
def enable_calls(type: type, /) -> None: ...
def forget_traced() -> None: ...

@final
class Traced:
    def __new__(cls, function: Any, alone: bool, /) -> Self: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Untraced:
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Instructions:
    def __new__(
        cls,
        looks: tuple[int, ...],
        depths: tuple[int, ...],
        counts: tuple[int, ...],
        entries: tuple[Any, ...],
        /,
    ) -> Self: ...

@final
class Follower:
    def __new__(
        cls,
        begin: Callable[[FrameType], Instructions | None],
        step: Callable[[FrameType, Any, tuple[Any, ...]], int],
        leave: Callable[[FrameType], None],
        modules: dict[str, bool],
        among: tuple[dict[int, CodeType], ...],
        empty: object,
        /,
    ) -> Self: ...

@final
class Timestamps:
    dropped: int
    def take(self) -> list[tuple[str, str, int, int, int]]: ...

@final
class Launching:
    kernel: Any
    grid: Any
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class Launchable:
    pre_run_hooks: Any
    debug: Any
    device_caches: Any
    used_global_vals: Any
    def __getitem__(self, grid: Any, /) -> Launching: ...
    def run(self, /, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any: ...
    def _prepare(self, parameters: tuple[Any, ...], most: int, /) -> None: ...
    def _counts(self) -> tuple[int, int, dict[str, int], int, int]: ...
    def _runs(self) -> tuple[tuple[Any, ...], ...]: ...

@final
class Run:
    def __new__(cls, plain: Any, type: type, beside: Any) -> Self: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: Any = None, /) -> Any: ...
    def __getattribute__(self, name: str, /) -> Any: ...
    choice: int
    def beside_of(self, kernel: Any, /) -> Launchable: ...

@final
class Wrapper:
    def __new__(
        cls,
        kind: str,
        plain: Any,
        type: type,
        config: type = ...,
        all_kwargs: Any = ...,
        fields: tuple[str, ...] = ...,
        launch: Any = ...,
        bind: Any = ...,
    ) -> Self: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: Any = None, /) -> Any: ...
    def __getattribute__(self, name: str, /) -> Any: ...

@final
class OnGrid:
    kernel: Any
    grid: Any
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __getattribute__(self, name: str, /) -> Any: ...

@final
class Bound:
    def __new__(
        cls,
        kernel: Any,
        beside: Launchable | None,
        description: Any,
        run: Any,
        launch_metadata: Any,
    ) -> Self: ...
    def __deepcopy__(self, memo: Any, /) -> Self: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class OnBound:
    grid: Any
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class Dispatching:
    def _prepare(
        self,
        parameters: tuple[Any, ...],
        by_value: tuple[bool, ...],
        most: int,
        abstract: type | None = None,
        /,
    ) -> None: ...
    def _tick(self) -> int: ...
    def _forget(self, which: Any, /) -> None: ...
    def _generation(self) -> int: ...
    def _made(self) -> tuple[int, int]: ...
    def _count(self) -> int: ...
    def _used(self) -> list[tuple[Any, int]]: ...
    def _look(self, stage: int | None, /, *args: Any, **kwargs: Any) -> Any: ...

@final
class Captures:
    launched: int
    is_off: bool
    def __new__(cls, device: int, count: int, make: Any, failed: Any) -> Self: ...
    def count(self) -> int: ...
    def let_go(self) -> None: ...

@final
class Ring:
    made: int
    reused: int
    def held(self) -> list[Any]: ...
    def clear(self) -> None: ...

@final
class Nearest:
    def __new__(cls, hints: tuple[tuple[tuple[int | None, ...], ...], ...]) -> Self: ...
    def number(self, shapes: Any, /) -> int | None: ...
