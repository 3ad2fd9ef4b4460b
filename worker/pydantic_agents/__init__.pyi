from .definition import PydanticDefinition as PydanticDefinition
from .definition import definition_of as definition_of
