"""A process that makes and rates tasks of reasoning-gym: asked on standard input, answers on standard output.

Each request is a JSON object with ``task`` (a name), ``params``, ``level``, ``seed`` and ``index``, and is answered by
``question`` and ``answer``. With ``reply`` it is answered by ``score``; without ``index`` it is only a check. A request
that cannot be served is answered by ``error``.

It is a process of its own because some tasks take seconds to make, some scorers evaluate what the model wrote, and some
tasks depend on the order of sets, which only a process with a fixed hash seed keeps.
"""

import difflib
import functools
import hashlib
import json
import resource
import sys
from typing import Any

import reasoning_gym
from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum

SIZE = 500
"""Tasks of one data set. Some make all of theirs at once, and none must be asked for more than it has."""
REDRAW = 2**40
"""Indices apart at which a task is drawn again, when it is not of the kind wanted (held out or not)."""
MEMORY_BYTES = 4 << 30


class Wrong(Exception):
    """What was asked for does not exist; the message says what does."""


@functools.lru_cache(maxsize=128)
def data_set(key: str, seed: str) -> Any:
    """The data set of one configuration (``task``, ``params`` and ``level`` as JSON) and seed. Raises Wrong."""
    asked = json.loads(key)
    name, level = asked["task"], asked["level"]
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3) or sorted(DATASETS)
        raise Wrong(f"reasoning-gym has no task {name!r}: there are {', '.join(near)}")
    fixed = {"seed": int(hashlib.sha256(seed.encode()).hexdigest()[:7], 16), "size": SIZE}
    arguments = {**fixed, **asked["params"]}
    try:
        if level is None:
            return reasoning_gym.create_dataset(name, **arguments)
        config = at_level(name, level).generate_configuration(arguments)
        return DATASETS[name][0](config=config)
    except Wrong:
        raise
    except Exception as error:  # a configuration's own checks raise in many ways
        raise Wrong(f"reasoning-gym's {name} refuses its parameters ({type(error).__name__}: {error})") from error


def at_level(name: str, level: int | dict[str, int]) -> Any:
    """The curriculum of ``name`` with all attributes, or those named, at a level. Raises Wrong."""
    if name not in CURRICULA:
        raise Wrong(f"reasoning-gym's {name} has no curriculum: use params, not level")
    curriculum = create_curriculum(name)
    attributes = curriculum.attributes
    most = {attribute: len(definition.levels) - 1 for attribute, definition in attributes.items()}
    known = ", ".join(f"{attribute} 0 to {highest}" for attribute, highest in most.items()) or "none"
    levels = {attribute: min(level, most[attribute]) for attribute in most} if isinstance(level, int) else level
    for attribute, value in levels.items():
        if attribute not in most or not 0 <= value <= most[attribute]:
            raise Wrong(f"reasoning-gym's {name} has no level {attribute} = {value}: its levels are {known}")
        curriculum.set_attr_level(attribute, value)
    return curriculum


@functools.lru_cache(maxsize=512)
def entry(key: str, seed: int, index: int) -> dict[str, Any]:
    """Task ``index``. A group asks for its own as often as it has members."""
    again, first = divmod(index, REDRAW)
    chunk, place = divmod(first, SIZE)
    made: dict[str, Any] = data_set(key, f"{seed}:{key}:{chunk}:{again}")[place]
    return made


def score(key: str, reply: str, made: dict[str, Any]) -> float:
    """The task's own rating. A reply that a scorer fails over earns nothing."""
    data = data_set(key, "check")
    try:
        return float(data.score_answer(reply, made))
    except Exception:
        return 0.0


def serve(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request."""
    key = json.dumps({name: request[name] for name in ("task", "params", "level")}, sort_keys=True)
    try:
        if "index" not in request:
            data_set(key, "check")
            return {}
        made = entry(key, request["seed"], request["index"])
        if "reply" not in request:
            return {"question": str(made["question"]), "answer": made["answer"]}
        return {"score": score(key, request["reply"], made)}
    except Wrong as error:
        return {"error": str(error)}
    except Exception as error:  # of a task's own code
        return {"error": f"reasoning-gym's {request['task']} failed ({type(error).__name__}: {error})"}


def main() -> None:
    for limit, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (most, most))
    answers = sys.stdout
    sys.stdout = sys.stderr  # some tasks print
    answers.write('"ready"\n')
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(serve(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
