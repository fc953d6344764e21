"""colibri: run frontier mixture-of-experts language models on the PC you own.

    import colibri

    with colibri.load("demo") as model:
        print(model.generate("Tell me a story about a fox.", temperature=0).text)

Importing this package is cheap: names are resolved on first use, so that the command line starts at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from colibri.chat import Session as Session
    from colibri.conversion import convert as convert
    from colibri.diagnosis import doctor as doctor
    from colibri.download import PullResult as PullResult
    from colibri.download import pull as pull
    from colibri.engine import CancelToken as CancelToken
    from colibri.engine import machine as machine
    from colibri.engine import version as version
    from colibri.errors import Busy as Busy
    from colibri.errors import Cancelled as Cancelled
    from colibri.errors import ColibriError as ColibriError
    from colibri.errors import ContextError as ContextError
    from colibri.errors import DownloadError as DownloadError
    from colibri.errors import EngineError as EngineError
    from colibri.errors import GrammarError as GrammarError
    from colibri.errors import InvalidValue as InvalidValue
    from colibri.errors import ModelError as ModelError
    from colibri.errors import ModelNotFound as ModelNotFound
    from colibri.errors import ResourceError as ResourceError
    from colibri.errors import StorageError as StorageError
    from colibri.generation import Stream as Stream
    from colibri.grammar import Grammar as Grammar
    from colibri.model import Model as Model
    from colibri.model import inspect as inspect
    from colibri.model import load as load
    from colibri.model import plan as plan
    from colibri.model import plan_remote as plan_remote
    from colibri.request import GenerationOptions as GenerationOptions
    from colibri.results import Check as Check
    from colibri.results import Chunk as Chunk
    from colibri.results import ConvertReport as ConvertReport
    from colibri.results import DoctorReport as DoctorReport
    from colibri.results import DraftStat as DraftStat
    from colibri.results import Machine as Machine
    from colibri.results import ModelInfo as ModelInfo
    from colibri.results import Plan as Plan
    from colibri.results import PlanReport as PlanReport
    from colibri.results import Result as Result
    from colibri.results import Stats as Stats
    from colibri.sampling import SamplingParams as SamplingParams
    from colibri.tools import ToolSet as ToolSet

__version__ = "0.1.0"

# Public name -> module that defines it.
_HOMES = {
    "Busy": "errors",
    "CancelToken": "engine",
    "Cancelled": "errors",
    "Check": "results",
    "Chunk": "results",
    "ColibriError": "errors",
    "ContextError": "errors",
    "ConvertReport": "results",
    "DoctorReport": "results",
    "DownloadError": "errors",
    "DraftStat": "results",
    "EngineError": "errors",
    "GenerationOptions": "request",
    "Grammar": "grammar",
    "GrammarError": "errors",
    "InvalidValue": "errors",
    "Machine": "results",
    "Model": "model",
    "ModelError": "errors",
    "ModelInfo": "results",
    "ModelNotFound": "errors",
    "Plan": "results",
    "PlanReport": "results",
    "PullResult": "download",
    "ResourceError": "errors",
    "Result": "results",
    "SamplingParams": "sampling",
    "Session": "chat",
    "Stats": "results",
    "StorageError": "errors",
    "Stream": "generation",
    "ToolSet": "tools",
    "convert": "conversion",
    "doctor": "diagnosis",
    "inspect": "model",
    "load": "model",
    "machine": "engine",
    "plan": "model",
    "plan_remote": "model",
    "pull": "download",
    "version": "engine",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'colibri' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"colibri.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
