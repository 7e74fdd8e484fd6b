"""Configuration and name of a zoo job: model, batch size and training."""

from __future__ import annotations

import re
from dataclasses import dataclass

USER_MODEL = re.compile(r"[\w.]+:\w+")  # a user's module:function
NAME = re.compile(
    rf"(?:(?P<family>[a-z0-9_]+)/(?P<variant>[a-z0-9-]+)|(?P<function>{USER_MODEL.pattern}))"
    r"/b(?P<batch_size>\d+)/(?P<optimizer>[a-z]+)(?:/(?P<precision>[a-z0-9]+))?"
)


@dataclass(frozen=True, slots=True)
class JobConfig:
    """Everything needed to build a job: of the zoo, or a user's own.

    ``family`` of a user's job is "module:function", and its ``variant`` is "".
    """

    family: str
    variant: str
    batch_size: int
    optimizer: str = "sgd"
    precision: str = "fp32"

    @property
    def name(self) -> str:
        """Readable and unique name: "resnet/w16-d20/b32/sgd", then the precision unless fp32."""
        name = f"{self.model}/b{self.batch_size}/{self.optimizer}"
        return name if self.precision == "fp32" else f"{name}/{self.precision}"

    @property
    def model(self) -> str:
        """Family and variant: the model without its batch size."""
        return f"{self.family}/{self.variant}" if self.variant else self.family

    @property
    def is_user_model(self) -> bool:
        """Whether the model is a user's, not of the zoo."""
        return ":" in self.family


def parse(name: str) -> JobConfig:
    """Return the configuration with that ``name``.

    Raises
    ------
    ValueError
        The text has another form. ``build`` checks whether the family exists.
    """
    match = NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f"job name {name!r} is not valid; use family/variant/b<batch size>/optimizer, "
            "and /precision unless it is fp32: 'resnet/w16-d20/b32/sgd'"
        )
    return JobConfig(
        family=match["family"] or match["function"],
        variant=match["variant"] or "",
        batch_size=int(match["batch_size"]),
        optimizer=match["optimizer"],
        precision=match["precision"] or "fp32",
    )
