"""Questions with checkable answers, made here: arithmetic, and closed questions of ten kinds."""

from collections.abc import Iterator

import numpy as np

from atypicality.llm.generation import Question
from atypicality.validation import check_choice, check_integer

__all__ = ["TASKS", "make_questions"]

TASKS = ("arithmetic", "closed")
CAPITALS = (
    "France Paris, Italy Rome, Spain Madrid, Germany Berlin, Japan Tokyo, China Beijing, Russia Moscow, Egypt "
    "Cairo, Greece Athens, Portugal Lisbon, Austria Vienna, Poland Warsaw, Hungary Budapest, Ireland Dublin, "
    "Norway Oslo, Sweden Stockholm, Finland Helsinki, Denmark Copenhagen, Belgium Brussels, Cuba Havana, Peru "
    "Lima, Chile Santiago, Kenya Nairobi, Iraq Baghdad, Iran Tehran, Turkey Ankara, Canada Ottawa, Australia "
    "Canberra, Thailand Bangkok, Vietnam Hanoi, Indonesia Jakarta, Ukraine Kyiv, Romania Bucharest, Bulgaria "
    "Sofia, Croatia Zagreb, Serbia Belgrade, Latvia Riga, Estonia Tallinn, Lithuania Vilnius, Iceland "
    "Reykjavik, Nepal Kathmandu, Ghana Accra, Senegal Dakar, Morocco Rabat, Tunisia Tunis, Algeria Algiers, "
    "Libya Tripoli, Taiwan Taipei, Uganda Kampala, Zambia Lusaka, Angola Luanda, Jordan Amman, Lebanon Beirut, "
    "Syria Damascus, Qatar Doha, Oman Muscat, Mongolia Ulaanbaatar"
)
OPPOSITES = (
    "hot cold, big small, up down, left right, day night, fast slow, happy sad, old young, rich poor, strong "
    "weak, hard soft, light dark, early late, open closed, full empty, good bad, high low, long short, love "
    "hate, win lose, buy sell, push pull, true false, first last, wet dry, clean dirty, loud quiet, thick "
    "thin, near far, inside outside, war peace, success failure, begin end, accept reject, ancient modern, "
    "arrive depart, increase decrease, north south"
)
MONTHS, DAYS, ANIMALS, OTHERS = (
    text.split()
    for text in (
        "January February March April May June July August September October November December",
        "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
        "dog cat horse cow lion tiger bear wolf eagle shark whale snake frog spider rabbit goat sheep owl seal crab",
        "table chair car stone river cloud hammer bottle pencil bridge shirt window spoon road lamp coin boat rope "
        "drum brick",
    )
)
ARITHMETIC_EXAMPLES = (("What is 3 + 4?", "3 + 4 = 7"), ("What is 12 - 6?", "12 - 6 = 6"))
CLOSED_EXAMPLES = (
    ("What is the capital of Malta?", "Valletta"),
    ("Is 12 an even number?", "Yes"),
    ("Which number is larger, 40 or 19?", "40"),
    ("Is a mountain an animal?", "No"),
)


def make_questions(task: str, n_questions: int = 1000, random_state: int = 0) -> list[Question]:
    """Distinct questions with their expected answers, after two or four solved examples.

    Parameters
    ----------
    task : {"arithmetic", "closed"}
        Sums, differences and products of numbers up to 99; or capitals, opposites, months, days, comparisons, even
        numbers, first letters, word lengths, animals and alphabetical order.
    n_questions : int, default=1000
    random_state : int, default=0

    Returns
    -------
    list of Question

    Examples
    --------
    >>> question = make_questions("arithmetic", 3)[0]
    >>> question.prompt, question.expected
    ('What is 4 * 7?', ('4 * 7 = 28', '28'))
    """
    check_choice(task, "task", TASKS)
    check_integer(n_questions, "n_questions", low=1)
    rng = np.random.default_rng(random_state)
    make = _arithmetic(rng) if task == "arithmetic" else _closed(rng)
    before = _turns(ARITHMETIC_EXAMPLES if task == "arithmetic" else CLOSED_EXAMPLES)
    known = {prompt for prompt, _ in (ARITHMETIC_EXAMPLES if task == "arithmetic" else CLOSED_EXAMPLES)}
    found: list[Question] = []
    for _ in range(100 * n_questions):
        prompt, *expected = next(make)
        if prompt not in known:
            known.add(prompt)
            found.append(Question(prompt, tuple(expected), before, f"{task}-{len(found)}"))
        if len(found) == n_questions:
            return found
    raise ValueError(f"n_questions must be at most {len(found)} or so: {task} has no more; got {n_questions}.")


def _turns(pairs: tuple[tuple[str, str], ...]) -> tuple[dict[str, str], ...]:
    return tuple(
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    )


def _arithmetic(rng: np.random.Generator) -> Iterator[tuple[str, ...]]:
    while True:
        sign = "+-*"[rng.integers(3)]
        most = [9, 12][rng.integers(2)] if sign == "*" else [9, 20, 50, 99][rng.integers(4)]
        a, b = sorted(map(int, rng.integers(1, most + 1, 2)), reverse=sign == "-" or bool(rng.integers(2)))
        value = a + b if sign == "+" else a - b if sign == "-" else a * b
        yield f"What is {a} {sign} {b}?", f"{a} {sign} {b} = {value}", str(value)


def _closed(rng: np.random.Generator) -> Iterator[tuple[str, ...]]:
    """One of ten kinds at a time, each with wordings of its own."""
    pairs = {name: [pair.split() for pair in text.split(", ")] for name, text in _PAIRS.items()}
    words = [*ANIMALS, *OTHERS, *(word for pair in pairs["opposite"] for word in pair)]
    while True:
        kind, wording = int(rng.integers(10)), int(rng.integers(2))
        a, b = map(int, rng.choice(np.arange(1, 300), 2, replace=False))
        first, second = rng.choice(words, 2, replace=False)
        if kind < 2:
            known, answer = pairs[("capital", "opposite")[kind]][a % len(pairs[("capital", "opposite")[kind]])]
            yield _WORDINGS[kind][wording].format(known), answer
        elif kind < 4:
            names = (MONTHS, DAYS)[kind - 2]
            step = (1, -1)[b % 2]
            yield (
                _WORDINGS[kind][wording].format(("after", "before")[b % 2], names[a % len(names)]),
                names[(a + step) % len(names)],
            )
        elif kind == 4:
            yield _WORDINGS[kind][wording].format(a, b), str(max(a, b) if wording == 0 else min(a, b))
        elif kind == 5:
            yield _WORDINGS[kind][wording].format(a), _yes(a % 2 == wording)
        elif kind == 6:
            letter = str(first if b % 2 else second)[0]
            yield _WORDINGS[kind][wording].format(first, letter), _yes(str(first)[0] == letter)
        elif kind == 7:
            size = len(first) + (b % 3 - 1)
            yield _WORDINGS[kind][wording].format(first, size), _yes(len(first) == size)
        elif kind == 8:
            noun = (ANIMALS, OTHERS)[b % 2][a % 20]
            yield _WORDINGS[kind][wording].format("an" if noun[0] in "aeiou" else "a", noun), _yes(b % 2 == 0)
        else:
            yield (
                _WORDINGS[kind][wording].format(first, second),
                str(min(first, second) if wording == 0 else max(first, second)),
            )


def _yes(true: bool) -> str:
    return "Yes" if true else "No"


_PAIRS = {"capital": CAPITALS, "opposite": OPPOSITES}
_WORDINGS = (
    ("What is the capital of {}?", "Which city is the capital of {}?"),
    ("What is the opposite of {}?", "Give a word that means the opposite of {}."),
    ("Which month comes right {} {}?", "Name the month {} {}."),
    ("Which day comes right {} {}?", "Name the day of the week {} {}."),
    ("Which number is larger, {} or {}?", "Which number is smaller, {} or {}?"),
    ("Is {} an even number?", "Is {} an odd number?"),
    ("Does the word '{}' begin with the letter '{}'?", "Is the first letter of '{}' the letter '{}'?"),
    ("Does the word '{}' have {} letters?", "Is '{}' a word of {} letters?"),
    ("Is {} {} an animal?", "Is {} {} a living creature?"),
    ("Which word comes first in the alphabet, {} or {}?", "Which word comes last in the alphabet, {} or {}?"),
)
