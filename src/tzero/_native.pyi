from typing import Any

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
    handle: int,
) -> None: ...
def open_cuda() -> bool: ...

class Launching:
    kernel: Any
    grid: Any
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class Launchable:
    def __getitem__(self, grid: Any) -> Launching: ...
    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any: ...
    def _prepare(self, parameters: tuple[Any, ...], most: int) -> None: ...
