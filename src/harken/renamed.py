"""Former names of settings, setting values and modules, with their new names: the tables of renamed.toml.

A recipe or a command line with a former name gets one line: `train.decay is now train.ema_decay`.
"""

import tomllib
from importlib.resources import files

_TABLES = tomllib.loads(files("harken").joinpath("renamed.toml").read_text("utf-8"))
SETTINGS: dict[str, list[str]] = _TABLES["settings"]  # new names by former path
MOVED: dict[str, str] = _TABLES["moved"]  # settings of another section now; the former path still works
VALUES: dict[str, str] = _TABLES["values"]
IMPORTS = {f"harken.{former}": f"harken.{new}" for former, new in _TABLES["modules"].items()}
