"""`atypicality llm`: prompts and a language model in, an outputs file out."""

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atypicality.cli.printing import say, say_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from atypicality.llm import PromptClassifier, PromptScorer
    from atypicality.llm.texts import Texts
    from atypicality.outputs import ModelOutputs

__all__ = ["EXAMPLES", "check_served", "command"]

EXAMPLES = """
atypicality llm classify --model folder --data questions.txt --template trec \\
    --out trec.npz
atypicality llm classify --model http://localhost:8000/v1 --served-model name \\
    --data news.csv --template prompt.txt --labels 1=World,2=Sports \\
    --label class --cache answers.jsonl --out news.npz
"""


def command(
    model: Annotated[
        str, typer.Option(help="Folder, .gguf file, hub name, address of a server, or .jsonl/.parquet file of scores.")
    ],
    data: Annotated[list[Path], typer.Option(help="File of texts: .jsonl .csv .tsv .parquet .txt; may be repeated.")],
    template: Annotated[str, typer.Option(help="imdb, trec, agnews, or a text file that holds {input} once.")],
    out: Annotated[Path, typer.Option(help="Outputs file: .npz .safetensors .parquet or a new folder.")],
    labels: Annotated[
        str | None,
        typer.Option(help="Label words with commas between, each with the data's name before it: 1=World,2=Sports."),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="Column of the text; may be repeated, and is then joined. [default: text]")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Column of the class, or first-word to take it off the front of the text.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="Encoding of the data files.")] = "utf-8",
    limit: Annotated[int | None, typer.Option(help="Use only the first rows.", min=1)] = None,
    atypicality: Annotated[str, typer.Option(help="total, per_token, per_byte or input.")] = "total",
    max_tokens: Annotated[int | None, typer.Option(help="Drop inputs with longer prompts.", min=1)] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Print how recalibration does on random halves.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print that comparison as JSON.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; default: cuda where there is one.")] = None,
    served_model: Annotated[str | None, typer.Option(help="Name of the model on the server.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask the server's chat endpoint: top_logprobs are enough.")
    ] = False,
    cache: Annotated[Path | None, typer.Option(help="File that keeps a server's answers, to resume with.")] = None,
    api_key_env: Annotated[str, typer.Option(help="Environment variable with the server's key.")] = "OPENAI_API_KEY",
) -> None:
    """Classify texts with a language model and write its outputs.

    They are the logits of the label words and how rare each prompt is.
    """
    from atypicality.blocks.progress import working
    from atypicality.llm import PromptClassifier, load_template
    from atypicality.outputs.files import check_place
    from atypicality.paper.sources import content_free_path

    check_place(out)
    check_place(content_free_path(out))
    if (compare or as_json) and label is None:
        raise typer.BadParameter("a comparison needs --label, the true classes")
    words, codes = _words(labels or "")
    chosen = load_template(template, words)
    if not chosen.labels:
        raise typer.BadParameter("a template from a file needs --labels, the words of the classes")
    chosen = replace(chosen, codes=dict(chosen.codes) | codes)
    texts = _read(data, text or ["text"], label, encoding, limit)
    with working("loading the model"):
        scorer = _scorer(model, device, served_model, cache, api_key_env, chat)
    classifier = PromptClassifier(scorer, chosen, atypicality=atypicality, max_tokens=max_tokens)
    truth = None if texts.labels is None else [chosen.word(code) for code in texts.labels]
    outputs = classifier.outputs(texts.inputs, labels=truth)
    outputs.save(out)
    outside = outputs.attributes.get("outside_mass")
    share = "" if outside is None else f"; probability outside the labels {outside.mean():.2f} on average"
    say(f"{out}: {outputs!r}{share}", err=True)
    without_content = _content_free(classifier, content_free_path(out))
    if compare or as_json:
        evaluation = _compared(outputs, without_content)
        if as_json:
            say_json(evaluation.to_json(indent=2))
        else:
            say(str(evaluation))


def _words(labels: str) -> tuple[list[str], dict[str, str]]:
    """Label words from a list with commas, and the words that other names mean, from those written NAME=WORD."""
    pairs = [[part.strip() for part in label.rpartition("=")] for label in labels.split(",") if label.strip()]
    words = list(dict.fromkeys(word for _, _, word in pairs))
    return words, {name: word for name, mark, word in pairs if mark}


def _read(files: list[Path], text: list[str], label: str | None, encoding: str, limit: int | None) -> "Texts":
    from atypicality.llm.texts import Texts, read_texts

    parts = [read_texts(file, text=text, label=label, encoding=encoding) for file in files]
    inputs = [value for part in parts for value in part.inputs][:limit]
    return Texts(inputs, None if label is None else [code for part in parts for code in part.labels or []][:limit])


def check_served(model: str, served_model: str | None) -> bool:
    """Whether the model is behind a server; one without a name there, or an address that is none, is refused."""
    if model.startswith(("http://", "https://")):
        if served_model is None:
            raise typer.BadParameter(
                "a server needs --served-model, the name of the model there; GET ADDRESS/models lists them"
            )
        return True
    if served_model is not None or re.match(r"[\w.-]+:\d+(/|$)", model):
        raise typer.BadParameter("the address of a server in --model begins with http:// or https://")
    return False


def _scorer(
    model: str, device: str | None, served_model: str | None, cache: Path | None, api_key_env: str, chat: bool
) -> "PromptScorer":
    from atypicality.llm import OpenAICompatibleChat, OpenAICompatibleScorer, PrecomputedScorer, TransformersScorer

    if check_served(model, served_model):
        if chat:
            return OpenAICompatibleChat(model, served_model or "", api_key_env=api_key_env)
        return OpenAICompatibleScorer(model, served_model or "", cache=cache, api_key_env=api_key_env)
    if Path(model).suffix.lower() in (".jsonl", ".parquet"):
        return PrecomputedScorer(model)
    return TransformersScorer.from_pretrained(model, device=device)


def _content_free(classifier: "PromptClassifier", path: Path) -> "NDArray[np.float64] | None":
    """Logits of prompts without content, kept for `reproduce llm`; None, with a warning, where they have no scores."""
    from atypicality.llm.scorers import NoScoresError
    from atypicality.outputs import ModelOutputs

    try:
        logits = classifier.content_free()
    except NoScoresError as error:
        warnings.warn(f"content-free calibration is left out: {error}", stacklevel=2)
        return None
    ModelOutputs(logits).save(path)
    say(f"{path}: logits of prompts without content", err=True)
    return logits


def _compared(outputs: "ModelOutputs", content_free: "NDArray[np.float64] | None") -> Any:
    """The paper's table for language models: quarters of atypicality, ten random halves."""
    from atypicality.evaluation import compare
    from atypicality.recalibration import ContentFreeCalibration

    methods: dict[str, Any] = {"uncalibrated": "uncalibrated"}
    if content_free is not None:
        methods["content-free"] = ContentFreeCalibration().fit(content_free)
    return compare(methods | {"ts": "ts", "aar": "aar"}, outputs, n_groups=4)
