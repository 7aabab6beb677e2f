"""Parts of a head by name, as the shell gives them: `split`, or with settings `split:score=raps,randomized=true`."""

import json
import re
from collections.abc import Iterable
from typing import Any

__all__ = ["choose_part", "part_name"]

ENDING = re.compile(r"(Atypicality|Scaling|Recalibration|Calibration|Conformal)$")


def part_name(cls: type) -> str:
    """The name of a class of parts in the shell.

    >>> from atypicality import GaussianAtypicality, GroupTemperatureScaling
    >>> part_name(GaussianAtypicality), part_name(GroupTemperatureScaling)
    ('gaussian', 'group-temperature')
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "-", ENDING.sub("", cls.__name__)).lower()


def choose_part(text: str, option: str, classes: Iterable[type], words: dict[str, Any], **settings: Any) -> Any:
    """The part that `text` names: what `words` gives for it, or an estimator of one of the `classes`.

    `settings` are passed on where the class takes them and the text does not say otherwise.

    >>> from atypicality import SplitConformal
    >>> choose_part("split:score=aps", "--sets", [SplitConformal], {"auto": "auto"}, alpha=0.05)
    SplitConformal(alpha=0.05, score='aps')
    """
    name, _, given = text.partition(":")
    known: dict[str, Any] = {part_name(cls): cls for cls in classes}
    if name in words and not given:
        return words[name]
    if name not in known:
        wrong = f"{name!r}, which takes no settings" if name in words else repr(name)
        raise ValueError(f"{option} must be one of {', '.join([*words, *sorted(known)])}; got {wrong}.")
    cls = known[name]
    taken = {key: value for key, value in settings.items() if key in cls._get_param_names()}
    return cls(**taken).set_params(**_settings(given, option))


def _settings(text: str, option: str) -> dict[str, Any]:
    """Values by name: JSON where it is JSON, and text else."""
    found = {}
    for pair in re.split(r",(?![^\[]*\])", text) if text else []:
        name, sign, value = (part.strip() for part in pair.partition("="))
        if not (name and sign and value):
            raise ValueError(f"{option} takes settings as NAME:SETTING=VALUE,SETTING=VALUE; got {pair!r}.")
        try:
            read = json.loads(value)
        except json.JSONDecodeError:
            read = value
        found[name] = tuple(read) if isinstance(read, list) else read
    return found
