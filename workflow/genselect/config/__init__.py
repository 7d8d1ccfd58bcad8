"""The configuration: models, defaults, identity, and errors that say what was meant."""

from genselect.config.base import RUNTIME, Section, fingerprint
from genselect.config.load import check_config, load_config
from genselect.config.models import Build, Cascade, Config, Dataset, Judge, JudgeClient, JudgeServer, Sampling

__all__ = [
    "RUNTIME",
    "Build",
    "Cascade",
    "Config",
    "Dataset",
    "Judge",
    "JudgeClient",
    "JudgeServer",
    "Sampling",
    "Section",
    "check_config",
    "fingerprint",
    "load_config",
]
