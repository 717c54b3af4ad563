# The public names and where they are from; sinkscope/__init__.py reads this file, and so do type checkers.
from . import tasks as tasks
from .attention.attend import attend as attend
from .attention.observe import observe as observe
from .decoding import decode as decode
from .errors import SinkscopeError as SinkscopeError
from .evals.harness import HarnessLM as HarnessLM
from .interventions import AddSinkToken as AddSinkToken
from .interventions import CutContext as CutContext
from .interventions import HoldSinks as HoldSinks
from .interventions import MaskPositions as MaskPositions
from .interventions import MaskRandom as MaskRandom
from .interventions import MaskSinks as MaskSinks
from .interventions import MeanValues as MeanValues
from .interventions import PatchKeys as PatchKeys
from .interventions import PatchValues as PatchValues
from .interventions import PenaliseSinks as PenaliseSinks
from .interventions import RotateSinks as RotateSinks
from .interventions import Soften as Soften
from .interventions import SoftmaxOffByOne as SoftmaxOffByOne
from .interventions import Window as Window
from .interventions import ZeroValues as ZeroValues
from .interventions import intervene as intervene
from .models.base import Model as Model
from .models.load import load as load
from .models.load import register as register
from .settings import Decode as Decode
from .settings import SparseCache as SparseCache
from .sinks import HeadShare as HeadShare
from .sinks import Threshold as Threshold
from .sinks import ZScore as ZScore
from .study.engines.ray import Ray as Ray
from .study.run import run as run
from .study.schema import Study as Study
from .tracing import Trace as Trace
from .tracing import trace as trace
from .tracing.lens import lens as lens
from .tracing.recorder import Keep as Keep

__version__: str
__all__: list[str]
