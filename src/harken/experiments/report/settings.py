"""Settings of the report."""

from typing import Literal

from pydantic import Field

from harken.settings import Settings

MAX_SAMPLES = 20


class ReportSettings(Settings):
    """Settings of report.html."""

    kind: Literal["page"] = "page"
    samples: int = Field(
        10,
        ge=0,
        le=MAX_SAMPLES,
        description="number of samples and of mistakes shown with their rows of the data; 0: no row of the data",
    )
