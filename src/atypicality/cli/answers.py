"""`atypicality llm answers`: questions and a language model in, a table of answers with their signals out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atypicality.cli.options import Seed
from atypicality.cli.printing import say

if TYPE_CHECKING:
    from atypicality.llm import ChatModel, Question

__all__ = ["EXAMPLES", "command"]

EXAMPLES = """
atypicality llm answers questions.jsonl --model http://localhost:8000/v1 \\
    --served-model name --samples 4 --out answers.jsonl
atypicality llm answers --task arithmetic --limit 500 --model folder \\
    --out answers.jsonl
"""


def command(
    model: Annotated[str, typer.Option(help="Address of a server, or a local model: folder, .gguf file, hub name.")],
    out: Annotated[Path, typer.Option(help="JSON Lines file for the answers, which AnswerHead reads.")],
    questions: Annotated[
        Path | None, typer.Argument(help="JSON Lines file: prompt or messages, and perhaps expected and id.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Questions made here instead: arithmetic or closed.")] = None,
    template: Annotated[
        str | None, typer.Option(help="Or texts to classify: imdb, trec, agnews, or a file that holds {input} once.")
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="With --template, column of the text. [default: text]")] = None,
    label: Annotated[str | None, typer.Option(help="With --template, column of the class, or first-word.")] = None,
    encoding: Annotated[str, typer.Option(help="With --template, encoding of the file.")] = "utf-8",
    limit: Annotated[int, typer.Option(help="Ask only the first questions.", min=1)] = 1000,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 16,
    samples: Annotated[int, typer.Option(help="Further answers to each question, to see how many agree.", min=0)] = 0,
    temperature: Annotated[float, typer.Option(help="Of these samples.")] = 1.0,
    verbalised: Annotated[
        bool, typer.Option("--verbalised", help="Also ask how likely the answer is correct.")
    ] = False,
    embeddings: Annotated[bool, typer.Option("--embeddings", help="Keep hidden states; local models only.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="No chat template; local models only.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; default: cuda where there is one.")] = None,
    served_model: Annotated[str | None, typer.Option(help="Name of the model on the server.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one request to a server.", min=0.001)] = 60.0,
    api_key_env: Annotated[str, typer.Option(help="Environment variable with the server's key.")] = "OPENAI_API_KEY",
    random_state: Seed = 0,
) -> None:
    """Ask a language model, and write answers for AnswerHead.

    Each answer stands with its prompt, its log-probabilities and what else was asked for. Where it is known which are
    correct, `atypicality fit` makes an answer head of them, and `predict`, `evaluate`, `report` and `monitor` take it.
    """
    from atypicality.llm import generate_answers
    from atypicality.outputs.paths import check_target

    check_target(out)
    asked = _questions(questions, task, template, (text or ["text"], label, encoding), random_state, limit)
    answers = generate_answers(
        _model(model, device, served_model, api_key_env, timeout, plain),
        asked,
        max_tokens=max_tokens,
        n_samples=samples,
        temperature=temperature,
        verbalised=verbalised,
        embeddings=embeddings,
        random_state=random_state,
    )
    answers.write(out)
    share = "" if answers.correct is None else f", {answers.correct.mean():.1%} correct"
    say(f"{out}: {answers!r}{share}", err=True)
    if answers.correct is not None:
        say(f"next: atypicality fit --calibration {out} --out answer-head", err=True)


def _questions(
    path: Path | None,
    task: str | None,
    template: str | None,
    columns: tuple[list[str], str | None, str],
    seed: int,
    limit: int,
) -> "list[Question]":
    from atypicality.llm import Question, load_template, make_questions, read_questions
    from atypicality.llm.texts import read_texts

    if (path is None) == (task is None):
        raise typer.BadParameter("give a file of questions or --task, and not both")
    if path is None:
        return make_questions(task or "", limit, seed)
    if template is None:
        return read_questions(path)[:limit]
    chosen, (text, label, encoding) = load_template(template), columns
    read = read_texts(path, text=text, label=label, encoding=encoding)
    words = [()] * len(read.inputs) if read.labels is None else [(chosen.word(code),) for code in read.labels]
    pairs = list(zip(read.inputs, words, strict=True))[:limit]
    return [Question(chosen.fill(given), expected) for given, expected in pairs]


def _model(
    model: str, device: str | None, served_model: str | None, api_key_env: str, timeout: float, plain: bool
) -> "ChatModel":
    from atypicality.cli.llm import check_served
    from atypicality.llm import OpenAICompatibleChat, TransformersScorer

    if check_served(model, served_model):
        if plain:
            raise typer.BadParameter("--plain is for local models: a chat endpoint has its own template")
        return OpenAICompatibleChat(model, served_model or "", api_key_env=api_key_env, timeout=timeout)
    loaded = TransformersScorer.from_pretrained(model, device=device)
    if plain:
        loaded.tokenizer.chat_template = None
    return loaded
