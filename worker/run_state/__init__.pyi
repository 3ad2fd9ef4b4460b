from .parts import Assessment as Assessment
from .parts import ReasoningStep as ReasoningStep
from .reason import RunReason as RunReason
from .run_state import RunState as RunState
from .view import RunView as RunView
