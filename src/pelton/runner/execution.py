"""What a model runs on, and in which number formats, from the engine's arguments."""

from dataclasses import replace
from logging import getLogger

from pelton.config import EngineArgs, ExecutionConfig
from pelton.layers import Target
from pelton.loader import Checkpoint
from pelton.loader.weight_formats import int4_formats, stored_formats
from pelton.ops.backend import Backend
from pelton.ops.backends import create_backend
from pelton.runner.cpu_count import available_cores

logger = getLogger(__name__)

_FORMATS = {"float32": "fp32", "bfloat16": "bf16"}
"""`dtype` -> format of weights that are not quantized."""


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


def choose_target(args: EngineArgs, backend: Backend, checkpoint: Checkpoint) -> Target:
    """The backend with formats: those asked for, or those in which it is fast."""
    target = target_for(choose_quantization(args, backend), _dtype(args, backend), backend, checkpoint)
    kv_cache_dtype = args.cache.kv_cache_dtype
    return replace(
        target,
        kv_cache_dtype=target.activation_dtype if kv_cache_dtype == "auto" else kv_cache_dtype,
        block_size=args.cache.block_size,
    )


def choose_quantization(args: EngineArgs, backend: Backend) -> str:
    """What is asked for, or for auto either none, or stored: each weight in the bits in which the checkpoint has it."""
    if args.model.quantization != "auto":
        return args.model.quantization
    return "stored" if backend.is_native and args.model.dtype == "auto" else "none"


def quantization_text(args: EngineArgs, backend: Backend) -> str:
    """The choice, for the log; with its reason where auto would have been more without `dtype`."""
    choice = choose_quantization(args, backend)
    if choice == "stored":
        return "as stored"
    is_reduced = args.model.quantization == "auto" and backend.is_native
    return "none, for dtype is given" if is_reduced else choice


def target_for(quantization: str, dtype: str, backend: Backend, checkpoint: Checkpoint) -> Target:
    """Formats for one choice of quantization; `dtype` matters if that is none."""
    match quantization:
        case "none":
            return Target(backend, _FORMATS[dtype])
        case "stored":
            return Target(backend, "bf16", part_format=stored_formats(checkpoint))
        case "int4":
            return Target(backend, "int4", part_format=int4_formats(checkpoint))
    return Target(backend, quantization)


def _dtype(args: EngineArgs, backend: Backend) -> str:
    if args.model.dtype != "auto":
        return args.model.dtype
    # numpy multiplies no bfloat16: each weight would be converted in every step.
    return "bfloat16" if backend.is_native else "float32"
