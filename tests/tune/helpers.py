"""What tests of a search need."""

from pathlib import Path

from pelton.bench.dataset_config import DatasetConfig
from pelton.tune.config import TuneConfig, TuneOptions
from pelton.tune.study import run_tune
from pelton.tune.trial import Commands

REPOSITORY = Path(__file__).parents[2]
STAND_IN = Commands(serve=("tests.tune.stand_in", "serve"), load=("tests.tune.stand_in", "load"))
SLO = ("p99_e2el_ms<500",)
SEARCH = ("max_num_seqs=8,16,32,64,128", "max_num_batched_tokens=256,512,1024,2048", "quantization=auto,int4,int8")


def make_config(folder, *, model="surface", slo=SLO, search=SEARCH, max_concurrency=1000, serve_flags=(), **options):
    options = TuneOptions(slo=slo, search=search, max_concurrency=max_concurrency, output_dir=str(folder), **options)
    dataset = DatasetConfig(dataset_name="builtin", num_prompts=1000)
    return TuneConfig(model=model, options=options, dataset=dataset, serve_flags=serve_flags)


def tune(folder, **options):
    """Search with the stand-in, and what was told meanwhile."""
    told = []
    outcome = run_tune(make_config(folder, **options), commands=STAND_IN, tell=told.append, num_cores=2)
    return outcome, told
