"""Language models as classifiers, and their answers: prompts, templates, and scorers of token log-probabilities."""

from typing import TYPE_CHECKING, Any

from atypicality.llm.answer_head import AnswerHead
from atypicality.llm.answers import Answers
from atypicality.llm.chat import OpenAICompatibleChat
from atypicality.llm.generation import ChatModel, Decoding, Question, Reply, generate_answers, read_questions
from atypicality.llm.judges import first_better, judgements
from atypicality.llm.openai import OpenAICompatibleScorer
from atypicality.llm.precomputed import PrecomputedScorer, write_scores
from atypicality.llm.prompts import PromptClassifier
from atypicality.llm.questions import make_questions
from atypicality.llm.scorers import LabelScorer, LabelScores, PromptScorer, TokenScores
from atypicality.llm.templates import AG_NEWS, CONTENT_FREE, IMDB, TEMPLATES, TREC, Template, load_template

if TYPE_CHECKING:
    from atypicality import TransformersScorer

__all__ = [
    "AG_NEWS", "CONTENT_FREE", "IMDB", "TEMPLATES", "TREC", "AnswerHead", "Answers", "ChatModel", "Decoding",
    "LabelScorer", "LabelScores", "OpenAICompatibleChat", "OpenAICompatibleScorer", "PrecomputedScorer",
    "PromptClassifier", "PromptScorer", "Question", "Reply", "Template", "TokenScores", "TransformersScorer",
    "first_better", "generate_answers", "judgements", "load_template", "make_questions", "read_questions",
    "write_scores",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "TransformersScorer":
        from atypicality import TransformersScorer

        return TransformersScorer
    raise AttributeError(f"module 'atypicality.llm' has no attribute {name!r}")
