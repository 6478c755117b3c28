"""Model cards: Markdown with a YAML head, as the Hugging Face hub lays them out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgram.core import codec
from fedgram.core.layouts import TableLayout, name_and_digest, source_and_model
from fedgram.core.samples import NO_SPACE, Space
from fedgram.core.targets import Output, outputs_named
from fedgram.data.items import ItemKind
from fedgram.errors import DataError
from fedgram.experiments.measures import score_words
from fedgram.experiments.reader import read_runs
from fedgram.experiments.record import file_name
from fedgram.experiments.run_record import RunRecord
from fedgram.federation.shared import Published
from fedgram.models.saved import opened
from fedgram.runtime import files
from fedgram.runtime.text import escaped, percent
from fedgram.runtime.version import own_version

CARD = "README.md"
_TASKS: dict[ItemKind | str, str] = {
    "images": "image-classification",
    "texts": "text-classification",
    "table": "tabular-classification",
}
_NUMBERS = "tabular-regression"  # the hub has no name for numbers of images and texts
_TEXT_BACKBONES = ("wordllama", "hf")  # the second one may take images too
_CLASSES = 100  # names that are listed


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What a card says about a model.

    Parameters
    ----------
    title
        Heading of the card.
    method, settings
        Name and parameters of the method, if known.
    space, classes
        Feature space and classes of the model.
    outputs
        The outputs of a model of numbers.
    client
        The client whose own model this is; empty for what all clients share, or several models.
    samples
        Numbers of samples, each with its meaning.
    run
        The run that made the model, if its folder is known.
    files
        The files that the card describes, each with its content.
    usage
        How to use the files, as Markdown.
    """

    title: str
    method: str
    space: Space
    classes: Sequence[str]
    outputs: Sequence[Output] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    client: str = ""
    samples: Mapping[str, int] = field(default_factory=dict)
    run: RunRecord | None = None
    files: Mapping[Path, str] = field(default_factory=dict)
    usage: str = ""


def card(facts: CardFacts) -> str:
    """Return the card as Markdown.

    Examples
    --------
    >>> space = Space(width=3, inputs=2, backbone="table 0123456789abcdef")
    >>> facts = CardFacts(title="Ward", method="afl", space=space, classes=("ill", "well"))
    >>> card(facts).splitlines()[1:4]
    ['library_name: fedgram', 'pipeline_tag: tabular-classification', 'tags:']
    """
    parts = [_head(facts), f"# {_plain(facts.title)}\n", _summary(facts)]
    if facts.usage:
        parts.append(f"## Use\n\n{facts.usage.strip()}\n")
    parts += [_data(facts), _choices(facts), _results(facts), _verify(facts), _reveals(facts)]
    return "\n".join(part for part in parts if part)


def write_run_card(folder: Path) -> None:
    """Write the card of a recorded run, beside its models; nothing without models.

    Parameters
    ----------
    folder
        The folder of the run.
    """
    shared, models = folder / "shared.safetensors", sorted(folder.glob("models/*.safetensors"))
    found = [path for path in (*models, shared) if path.is_file()]
    if not found:
        return
    run = read_runs([folder])[0]
    value = opened(codec.load(found[0])).model
    held = value.shared if isinstance(value, Published) else value
    own = f"the own models of {len(models)} clients in `models/`" if models else "no own models"
    facts = CardFacts(
        title=run.method,
        method=run.method,
        settings=run.parameters,
        space=getattr(held, "space", NO_SPACE),
        classes=getattr(held, "classes", ()),
        outputs=outputs_named(getattr(held, "classes", ())),
        samples=sizes_of(run, ""),
        run=run,
        files={path: "what all clients share" for path in found if path == shared},
        usage=f"""\
The folder has `shared.safetensors`, if something is shared, and {own}.

```
fedgram predict {models[0].parent.name}/{models[0].name} INPUT
fedgram export {models[0].parent.name}/{models[0].name} --to onnx
```"""
        if models
        else "`fedgram personalize shared.safetensors DATA` makes a client's own model.",
    )
    files.write(folder / CARD, card(facts))


def write_personal_card(path: Path, model: Any, published: Published, samples: int) -> Path:
    """Write the card of a site's own model beside its file, and return the card's path.

    Parameters
    ----------
    path
        The file of the model.
    model
        The model.
    published
        What it was made from.
    samples
        Number of the site's samples.
    """
    facts = CardFacts(
        title=f"{published.method} of {path.stem}",
        method=published.method,
        settings=published.settings,
        space=model.space,
        classes=model.classes,
        client=path.stem,
        samples={"own samples": samples},
        files={path: "the model"},
        usage=f"```\nfedgram predict {path.name} INPUT\n```",
    )
    target = path.with_name(f"{path.name}.md")
    files.write(target, card(facts))
    return target


def run_of(model: Path) -> RunRecord | None:
    """Return the run in whose folder a model file is; None outside of a run."""
    for folder in (model.parent, model.parent.parent):
        if (folder / "run.json").is_file():
            try:
                return read_runs([folder])[0]
            except DataError:  # interrupted before anything was scored
                return None
    return None


def client_of(model: Path, run: RunRecord | None) -> str:
    """Return the client of a model file in the folder of a run; empty for other files."""
    if run is None or model.parent.name != "models":
        return ""
    named = {file_name(name): name for name in _clients(run)}
    return named.get(model.stem, "")


def sizes_of(run: RunRecord, client: str) -> dict[str, int]:
    """Return numbers of samples of a run, and of one of its clients."""
    if run.partition is None:
        return {"clients": run.summary.clients}
    found = {"clients": len(run.partition.clients)}
    for part in ("train", "valid", "test"):
        rows = {each.client: int(sum(getattr(each, part))) for each in run.partition.clients}
        if sum(rows.values()):
            found[f"{_PARTS[part]} samples of all clients"] = sum(rows.values())
        if client in rows:
            found[f"{_PARTS[part]} samples of {client}"] = rows[client]
    return found


_PARTS = {"train": "training", "valid": "validation", "test": "test"}


def _clients(run: RunRecord) -> list[str]:
    if run.partition is not None:
        return [each.client for each in run.partition.clients]
    return [each.client for each in run.chosen.clients]


def _head(facts: CardFacts) -> str:
    lines = ["---", "library_name: fedgram", f"pipeline_tag: {_task(facts)}", "tags:"]
    lines += [f"- {tag}" for tag in ("federated-learning", "closed-form", facts.method) if tag]
    source, model = source_and_model(facts.space.backbone)
    if source in ("hf", "timm"):
        lines.append(f"base_model: {json.dumps(model)}")
    if facts.run is not None:
        lines += _index(facts, facts.run)
    return "\n".join([*lines, "---\n"])


def _index(facts: CardFacts, run: RunRecord) -> list[str]:
    score = run.summary.accuracy.get("client_mean")
    if score is None:
        return []
    kind = "r_squared" if facts.outputs else "accuracy"
    source = str(run.config.get("data", {}).get("source", "data"))
    return [
        "model-index:",
        f"- name: {json.dumps(facts.title)}",
        "  results:",
        f"  - task: {{type: {_task(facts)}}}",
        f"    dataset: {{name: {json.dumps(source)}, type: {json.dumps(Path(source).stem)}}}",
        "    metrics:",
        f"    - {{type: {kind}, name: client mean, value: {score:.4f}}}",
    ]


def _task(facts: CardFacts) -> str:
    space = facts.space
    if facts.outputs:
        return _NUMBERS
    name = source_and_model(space.backbone)[0] or name_and_digest(space.backbone)[0]
    if not space.backbone or isinstance(space.layout, TableLayout) or name == "identity":
        return _TASKS["table"]
    return _TASKS["texts" if name in _TEXT_BACKBONES[:1] else "images"]


def _summary(facts: CardFacts) -> str:
    whose = f"the own model of client **{_plain(facts.client)}**" if facts.client else "a model"
    method = f" by the method `{facts.method}`" if facts.method else ""
    given = [output.text for output in facts.outputs] or facts.classes
    names = [_plain(name) for name in given[:_CLASSES]]
    more = len(given) - len(names)
    listed = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    kind = "Outputs" if facts.outputs else "Classes"
    backbone = _plain(facts.space.backbone) or "vectors whose backbone is not named"
    return (
        f"This is {whose}, solved in closed form from sums over the samples of a federation"
        f"{method} with fedgram {own_version()}.\n\n"
        f"- **{kind}** ({len(given)}): {listed}\n"
        f"- **Features**: {facts.space.inputs} of {backbone}\n"
        f"- **Steps**: {_plain('; '.join(facts.space.steps)) or 'raw vectors'}\n"
    )


def _data(facts: CardFacts) -> str:
    lines = [f"| {_plain(name)} | {count:,} |" for name, count in facts.samples.items()]
    data = dict(facts.run.config.get("data", {})) if facts.run is not None else {}
    given = [f"- `data.{k} = {json.dumps(v)}`" for k, v in sorted(data.items()) if v is not None]
    if not lines and not given:
        return ""
    table = ["| number of | |", "|---|---|", *lines] if lines else []
    return "\n".join(["## Data\n", *table, *([""] if table and given else []), *given, ""])


def _choices(facts: CardFacts) -> str:
    lines = [f"- `{name} = {json.dumps(value)}`" for name, value in facts.settings.items()]
    tuned = facts.run.summary.tuned if facts.run is not None else None
    if tuned is not None:
        lines.append(f"- chosen on left-out training samples: {_plain(tuned.description)}")
    return "\n".join(["## Choices\n", *lines, ""]) if lines else ""


def _results(facts: CardFacts) -> str:
    if facts.run is None:
        return ""
    found, errors = facts.run.summary.accuracy, facts.run.summary.errors or {}
    lines = [
        f"| {quantity.meaning} | {_score(score, facts)} |"
        for name, quantity in score_words(numbers=bool(facts.outputs)).quantities.items()
        if (score := found.get(name)) is not None
    ]
    own = [each for each in facts.run.chosen.clients if each.client == facts.client]
    lines += [
        f"| of {_plain(facts.client)} on its own {each.samples} test samples "
        f"| {_score(each.accuracy, facts)} |"
        for each in own
        if each.accuracy is not None
    ]
    lines += [
        f"| {name.upper()} over the test samples of all clients | {error:.4g} |"
        for name, error in errors.items()
        if error is not None
    ]
    title = "R2 and errors" if facts.outputs else "Accuracy"
    return "\n".join([f"## {title}\n", f"| {title} | |", "|---|---|", *lines, ""])


def _score(value: float, facts: CardFacts) -> str:
    return f"{value:.3f}" if facts.outputs else f"{percent(value)} %"


def _verify(facts: CardFacts) -> str:
    lines = []
    summary = facts.run.summary if facts.run is not None else None
    if summary is not None and summary.shared_digest:
        lines.append(f"- digest of the shared totals (`shared_digest`): `{summary.shared_digest}`")
    if summary is not None and summary.model_digest:
        lines.append(f"- digest of all models (`model_digest`): `{summary.model_digest}`")
    for path, content in facts.files.items():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"- `{path.name}` ({content}): sha256 `{digest}`")
    if not lines:
        return ""
    if summary is not None:
        lines.append(
            "\nTo verify: repeat the run with the settings above (`run.json` has all of them) and "
            "compare the digests. On the grid the shared digest is the same on every machine; the "
            "digest of the models is for the same BLAS kernels."
        )
    return "\n".join(["## Verify\n", *lines, ""])


def _reveals(facts: CardFacts) -> str:
    kind = "outputs with their ranges" if facts.outputs else "classes"
    lines = [
        "- A model is a function of its training samples, without noise: who has it can guess "
        "facts about them, the more the fewer samples there were. No formal privacy is promised.",
        f"- The names of the {kind}, and the backbone with its digest, are in the file.",
    ]
    about = "how large outputs are" if facts.outputs else "which classes are frequent"
    if facts.client:
        lines.append(
            f"- This model was solved with the samples of {_plain(facts.client)}. It reveals "
            f"{about} there. Treat it like data of that client."
        )
    elif facts.run is not None:
        lines.append(
            "- Files in `models/` were solved with the samples of one client each: treat each like "
            "data of that client. `shared.safetensors` is what every client receives; with some "
            "methods (`fedhip`, `auto`) it holds summed Gram matrices."
        )
    if facts.run is not None:
        engine = facts.run.config.get("engine", {})
        hidden = (
            "only sums" if engine.get("secure") or engine.get("private") else "each client's sums"
        )
        lines.append(f"- The server of this run could see {hidden}.")
    return "\n".join(["## What it may reveal\n", *lines, ""])


def _plain(text: object) -> str:
    """Return a foreign text for Markdown: neither its markup nor its control characters act."""
    shown = escaped(text).replace("|", "\\|").replace("<", "&lt;")
    return shown.replace("`", "'").replace("[", "\\[")
