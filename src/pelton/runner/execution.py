"""What a model runs on, and in which number formats, from the engine's arguments."""

from logging import getLogger

from pelton.config import EngineArgs, ExecutionConfig
from pelton.layers import Target
from pelton.ops.backend import Backend
from pelton.ops.backends import create_backend
from pelton.ops.packed_linear import FORMAT_DTYPES
from pelton.runner.cpu_count import available_cores

logger = getLogger(__name__)

_FORMATS = {dtype: weight_format for weight_format, dtype in FORMAT_DTYPES.items()}
"""`dtype` -> format of the weights."""


def start_backend(execution: ExecutionConfig) -> Backend:
    """The kernels and their threads. Whoever starts them closes them.

    Raises ValueError for threads or kernels that cannot be had.
    """
    num_cores = available_cores()
    num_threads = num_cores if execution.num_threads is None else execution.num_threads
    if num_threads > num_cores:
        logger.warning("num_threads is %d, but there are %d cores: this is slower", num_threads, num_cores)
    try:
        return create_backend(num_threads, eager=execution.enforce_eager, check_nan=execution.check_nan)
    except OSError as error:
        raise ValueError(f"{error}; set num_threads to less than {num_threads}") from None


def choose_target(args: EngineArgs, backend: Backend) -> Target:
    """The backend with formats: those asked for, or those in which it is fast."""
    dtype = args.model.dtype
    if dtype == "auto":
        # numpy multiplies no bfloat16: each weight would be converted in every step.
        dtype = "bfloat16" if backend.is_native else "float32"
    kv_cache_dtype = args.cache.kv_cache_dtype
    return Target(
        backend,
        weight_format=_FORMATS[dtype],
        kv_cache_dtype=dtype if kv_cache_dtype == "auto" else kv_cache_dtype,
        block_size=args.cache.block_size,
    )
