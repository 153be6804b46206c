"""Types of fields that requests have in common."""

from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from pelton.error_text import shown


def one_of(wanted: str) -> WrapValidator:
    """A message for a union, of which pydantic tells what is wrong with every member."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(f"must be {wanted}, got {shown(value)}") from None

    return WrapValidator(validate)


Integer = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
