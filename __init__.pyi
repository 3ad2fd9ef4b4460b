"""The public names with the modules that define them; `__init__.py` loads them on first use."""

from .config.settings import (
    Settings as Settings,
)
from .config.version import (
    __version__ as __version__,
)
from .tasks.app import (
    install as install,
)
from .tasks.client.async_client import (
    AsyncAgentClient as AsyncAgentClient,
)
from .tasks.client.client import (
    AgentClient as AgentClient,
)
from .tasks.client.job import (
    Job as Job,
)
from .tasks.client.pydantic_runs import (
    durable as durable,
)
from .worker.agent import (
    Agent as Agent,
)
from .worker.capabilities import (
    AgentLimits as AgentLimits,
)
from .worker.capabilities import (
    Approvals as Approvals,
)
from .worker.capabilities import (
    AskUser as AskUser,
)
from .worker.capabilities import (
    Guardrails as Guardrails,
)
from .worker.capabilities import (
    LoopDetection as LoopDetection,
)
from .worker.capabilities import (
    MemoryFacts as MemoryFacts,
)
from .worker.capabilities import (
    Planning as Planning,
)
from .worker.capabilities import (
    Reasoning as Reasoning,
)
from .worker.capabilities import (
    Reflection as Reflection,
)
from .worker.capabilities import (
    Reflexion as Reflexion,
)
from .worker.capabilities import (
    Rule as Rule,
)
from .worker.capabilities import (
    Subagents as Subagents,
)
from .worker.capabilities import (
    Summarization as Summarization,
)
from .worker.capabilities import (
    Termination as Termination,
)
from .worker.capabilities import (
    Tracing as Tracing,
)
from .worker.capability import (
    Capability as Capability,
)
from .worker.drivers import (
    CallTool as CallTool,
)
from .worker.drivers import (
    InferenceRequest as InferenceRequest,
)
from .worker.guards import (
    Delay as Delay,
)
from .worker.guards import (
    FinishReasonGuard as FinishReasonGuard,
)
from .worker.guards import (
    Guard as Guard,
)
from .worker.guards import (
    GuardView as GuardView,
)
from .worker.guards import (
    Proceed as Proceed,
)
from .worker.guards import (
    StopWith as StopWith,
)
from .worker.hooks import (
    Hook as Hook,
)
from .worker.hooks import (
    HookContext as HookContext,
)
from .worker.hooks import (
    HookPoint as HookPoint,
)
from .worker.mcp import (
    MCPServer as MCPServer,
)
from .worker.pydantic_agents.durability import (
    CeleryDurability as CeleryDurability,
)
from .worker.state import (
    AgentState as AgentState,
)
from .worker.state import (
    Answer as Answer,
)
from .worker.state import (
    Approve as Approve,
)
from .worker.state import (
    Deny as Deny,
)
from .worker.state import (
    ExecutionBudget as ExecutionBudget,
)
from .worker.state import (
    ExecutionStatus as ExecutionStatus,
)
from .worker.state import (
    InferenceResponse as InferenceResponse,
)
from .worker.state import (
    LLMConfig as LLMConfig,
)
from .worker.state import (
    Message as Message,
)
from .worker.state import (
    Role as Role,
)
from .worker.state import (
    ToolCall as ToolCall,
)
from .worker.state import (
    ToolExecution as ToolExecution,
)
from .worker.store import (
    Event as Event,
)
from .worker.store import (
    EventType as EventType,
)
from .worker.store import (
    Result as Result,
)
from .worker.tools import (
    Allow as Allow,
)
from .worker.tools import (
    Ask as Ask,
)
from .worker.tools import (
    Handoff as Handoff,
)
from .worker.tools import (
    LookupResult as LookupResult,
)
from .worker.tools import (
    NeedsAnswer as NeedsAnswer,
)
from .worker.tools import (
    NeedsApproval as NeedsApproval,
)
from .worker.tools import (
    StopExecution as StopExecution,
)
from .worker.tools import (
    ToolContext as ToolContext,
)
from .worker.tools import (
    tool as tool,
)
