"""Templates: `web@.unikernel` declares a task for each instance, `web@1`, by one unit file `web@.service`.

The unit file is made for a stand-in: an instance whose name is in no file of the template. In the text, `%i` then takes
its place. Keys that are no part of the unit file are read for each instance when it is started.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from glob import escape
from types import MappingProxyType

from solo5_systemd.base.errors import InvalidRequestError, SettingsError
from solo5_systemd.base.names import NetworkName, is_task_name, task_name
from solo5_systemd.declared.declaration import NEWEST, SUFFIX, Declaration, parse_declaration
from solo5_systemd.declared.syntax import Source, parse_file, specifiers

_SAMPLES = ("1", "a")
"""Instances for which a template is read where it has no DefaultInstance=: a number, and a word."""

_SAMPLE_HINT = "Where %i has to be of another form than 1 or a, set DefaultInstance= in [Install] to one that is."
_DIGITS = 12
_PREFIX_MAX = 100


def image_pattern(template: Declaration) -> str:
    """Return the shell pattern of the image of every instance; of a declaration that is no template, of its image."""
    return replace(template, stand_ins=dict.fromkeys(template.stand_ins, "*")).text(escape(template.workload.image))


def is_template(name: str) -> bool:
    """Return whether the name of a declaration is that of a template."""
    return name.endswith("@")


def parse_template(
    name: str,
    sources: Sequence[Source],
    *,
    host: Mapping[str, str] = MappingProxyType({}),
    served: Collection[NetworkName] = (),
    systemd: int = NEWEST,
) -> Declaration:
    """Return a template, of a name such as `web@`; each line is read for an instance, too.

    Raises:
        Solo5Error: as `parse_declaration`; also for a value that depends on the instance where a unit file cannot.
    """
    prefix = task_name(name.removesuffix("@"))
    if len(prefix) > _PREFIX_MAX:  # the name of a task has the instance as well, and here the stand-in
        raise InvalidRequestError(f"{name} is too long for a template: expected at most {_PREFIX_MAX} characters.")
    content = b"\n".join(source.content for source in sources)
    # Two words that are not in the files: of lower-case letters and digits, which any text may have.
    words = (f"i{hashlib.sha256(content + bytes((number,))).hexdigest()[:_DIGITS]}" for number in range(256))
    escaped, unescaped, *_ = (word for word in words if word.encode() not in content)
    of_unit = {**specifiers(f"{prefix}@{escaped}", host), "I": unescaped, "f": f"/{unescaped}"}

    parse = partial(parse_declaration, sources=sources, host=host, served=served, systemd=systemd)
    sample = specifiers(f"{prefix}@{_sample(prefix, sources, parse)}", host)
    try:
        found = parse(f"{prefix}@{escaped}", in_unit=of_unit, at_start=sample)
    except SettingsError as error:
        sentence = error.sentence.replace(escaped, "%i").replace(unescaped, "%I")
        raise SettingsError(
            sentence, f"The unit of a template has %i as text only: write a file for each instance, {prefix}@1{SUFFIX}."
        ) from error
    return replace(found, stand_ins={escaped: "%i", unescaped: "%I"})


def _sample(prefix: str, sources: Sequence[Source], parse: Callable[[str], Declaration]) -> str:
    """Return the first instance that the template can be read for; if there is none, raise the error of the first."""
    lines = (line for source in sources for line in parse_file(source))
    default = [line.value for line in lines if line.key == "DefaultInstance"]
    errors: list[SettingsError] = []
    for instance in (each for each in (*default[-1:], *_SAMPLES) if is_task_name(f"{prefix}@{each}")):
        try:
            parse(f"{prefix}@{instance}")
        except SettingsError as error:
            errors.append(error)
        else:
            return instance
    depends = len({error.sentence for error in errors}) > 1  # one sentence for all is a fault of the template itself
    raise SettingsError(errors[0].sentence, _SAMPLE_HINT if depends else errors[0].hint) from errors[0]
