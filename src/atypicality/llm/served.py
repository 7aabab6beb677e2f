"""A model behind a server: the address, the key, deadlines and retries, shared by all that ask one."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Self, TypeVar

from atypicality import blocks
from atypicality.blocks.progress import track
from atypicality.llm.client import JsonClient, ServerFaultError, check_url
from atypicality.validation import check_integer, check_number

__all__ = ["ServedModel"]

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class ServedModel:
    """Connections to one endpoint of a server; the parameters are those of `OpenAICompatibleScorer`."""

    endpoint: ClassVar[str] = "completions"

    url: str
    model: str
    _: KW_ONLY
    api_key_env: str | None = "OPENAI_API_KEY"
    concurrency: int = 8
    timeout: float = 60.0
    max_retries: int = 5
    backoff: float = 0.5
    max_bytes: int = 32 * 2**20
    _client: JsonClient | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; asking again opens new ones."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> JsonClient:
        check_integer(self.concurrency, "concurrency", low=1)
        if self._client is None:
            self._client = JsonClient(
                self.url,
                self.endpoint,
                api_key_env=self.api_key_env,
                timeout=check_number(self.timeout, "timeout", low=0, low_open=True),
                max_retries=check_integer(self.max_retries, "max_retries", low=0),
                backoff=check_number(self.backoff, "backoff", low=0),
                max_bytes=check_integer(self.max_bytes, "max_bytes", low=1),
                connections=self.concurrency,
            )
        return self._client

    def _asked(self, body: Mapping[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        """What `read` makes of the answer; its ValueError names a fault of the server."""
        client = self._connected()
        answer = client.post({"model": self.model} | dict(body))
        try:
            return read(answer)
        except ValueError as error:
            raise ServerFaultError(f"{check_url(self.url, self.endpoint)}: {client.clean(str(error))}") from None

    def _each(self, ask: Callable[[int], T], n_rows: int) -> list[T]:
        """What `ask` gives for every row, `concurrency` of them at a time."""
        answers = blocks.map_rows(lambda rows: ask(rows.start), n_rows, block=1, threads=self.concurrency)
        return list(track(answers, "Asking the server", total=n_rows, unit="prompts"))
