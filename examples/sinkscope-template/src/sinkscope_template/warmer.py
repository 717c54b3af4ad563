from typing import Annotated, Any, ClassVar

from sinkscope.extend import DecodeChange, Label, NonNegative, StudyError, settings


@settings(StudyError)
class Warmer(DecodeChange):
    """Tokens are drawn at another temperature; attention stays as it is."""

    name: ClassVar[str] = "warmer"  # in study files
    always: ClassVar[tuple[str, ...]] = ("temperature",)  # in labels and results at its default too
    temperature: Annotated[NonNegative, Label("temperature {:g}")] = 0.7

    def decode(self) -> dict[str, Any]:
        return {"temperature": self.temperature}
