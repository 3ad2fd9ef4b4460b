from .driver import PydanticAIDriver as PydanticAIDriver
