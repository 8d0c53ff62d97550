"""Requests become token ids: validation, chat template, tokenizer, limits. Synchronous and thread safe."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from triptych.v1 import render_pb2, scheduler_pb2, types_pb2

from services.render.model_folder import ModelFolder
from services.render.output.text_params import resolve_text_params, set_parser
from services.render.request.conversation import read_conversation
from services.render.template.chat_template import ChatTemplate
from services.render.time_limit import check_clock
from services.render.tokenizer.tokenizer import Tokenizer
from shared.errors import Reason, ServiceError, out_of_range
from shared.sampling_params import resolve, validate

# As many as are put into a message in a few milliseconds.
_IDS_AT_A_TIME = 64 * 1024


class Renderer:
    """Renders for one model."""

    def __init__(
        self,
        model: ModelFolder,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        *,
        parser: render_pb2.Parser.ValueType = render_pb2.PARSER_UNSPECIFIED,
        scheduler_info: Callable[[], types_pb2.ModelInfo | None] = lambda: None,
        observe: Callable[[str, float], None] = lambda _stage, _seconds: None,
    ) -> None:
        """scheduler_info: what the scheduler said of its limits last. observe: (stage, seconds) of each
        stage: template, tokenize."""
        self.model = model
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._parser = parser
        self._scheduler_info = scheduler_info
        self._observe = observe

    @property
    def tokenizer_fingerprint(self) -> str:
        """Names the tokenizer to workers, which refuse another one's token ids."""
        return self._tokenizer.fingerprint

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output: the smaller of the model's limit and the scheduler's."""
        info = self._scheduler_info()
        return min(self.model.max_model_len, info.max_model_len) if info else self.model.max_model_len

    def render(
        self, request: render_pb2.RenderChatRequest | render_pb2.RenderCompletionRequest, prefix: str = ""
    ) -> render_pb2.RenderChatResponse | render_pb2.RenderCompletionResponse:
        """render_chat or render_completion, by the request's type."""
        if isinstance(request, render_pb2.RenderChatRequest):
            return self.render_chat(request, prefix)
        return self.render_completion(request, prefix)

    def render_chat(
        self, request: render_pb2.RenderChatRequest, prefix: str = ""
    ) -> render_pb2.RenderChatResponse:
        """Template and tokenizer. The template emits what begins a sequence, so the tokenizer adds nothing;
        only the template's own control tokens are more than text.

        prefix: of field paths. Raises ServiceError with the reasons listed at RenderService.
        """
        rendered, text_params = self._start(request, prefix)
        conversation = read_conversation(request, self._chat_template.reserved_names, prefix)
        with self._stage("template"):
            prompt = self._chat_template.render(conversation, prefix)
            check_clock()  # whatever took so long, what follows may take as long again
        set_parser(text_params, self._parser, prompt.sanitized, conversation.tools)
        field = f"{prefix}messages"
        self._refuse_long_text(len(prompt.text), field)
        with self._stage("tokenize"):
            token_ids = self._tokenizer.encode_pieces(prompt.pieces, field=field)
        response = render_pb2.RenderChatResponse(
            generate_request=rendered,
            text_params=text_params,
            prompt_text=prompt.text if request.return_prompt_text else "",
        )
        self._set_prompt(response.generate_request, token_ids, field)
        return response

    def render_completion(
        self, request: render_pb2.RenderCompletionRequest, prefix: str = ""
    ) -> render_pb2.RenderCompletionResponse:
        """A text gets what the tokenizer adds to a plain prompt; token ids are taken as they are.

        prefix: of field paths. Raises ServiceError with the reasons listed at RenderService.
        """
        rendered, text_params = self._start(request, prefix)
        kind = request.WhichOneof("prompt")
        field = f"{prefix}{kind or 'prompt'}"
        token_ids: Sequence[int] = []
        if kind == "text":
            self._refuse_long_text(len(request.text), field)
            token_ids = self._encode(request.text, field, add_special_tokens=True)
        elif kind == "token_ids":
            token_ids = request.token_ids.ids
            self._check_token_ids(token_ids, f"{field}.ids")
        response = render_pb2.RenderCompletionResponse(generate_request=rendered, text_params=text_params)
        self._set_prompt(response.generate_request, token_ids, field)
        return response

    def tokenize(self, request: render_pb2.TokenizeRequest) -> render_pb2.TokenizeResponse:
        """Raises ServiceError: UNKNOWN_MODEL, INVALID_TEXT."""
        self.check_model(request.model, "model")
        adds = request.add_special_tokens if request.HasField("add_special_tokens") else True
        token_ids = self._encode(request.text, "text", add_special_tokens=adds)
        return render_pb2.TokenizeResponse(token_ids=token_ids)

    def detokenize(self, request: render_pb2.DetokenizeRequest) -> render_pb2.DetokenizeResponse:
        """Ids of the model's that the tokenizer does not know decode to the empty string.

        Raises ServiceError: UNKNOWN_MODEL, PARAMETER_OUT_OF_RANGE.
        """
        self.check_model(request.model, "model")
        self._check_token_ids(request.token_ids, "token_ids")
        skips = request.skip_special_tokens
        text = self._tokenizer.decode(request.token_ids, skip_special_tokens=skips)
        return render_pb2.DetokenizeResponse(text=text)

    def check_model(self, name: str, field: str) -> None:
        """Raises ServiceError (UNKNOWN_MODEL) unless the name is empty or the served one."""
        if name not in ("", self.model.name):
            message = f"{field} is {name[:80]!r}; this renderer serves {self.model.name!r}"
            raise ServiceError(Reason.UNKNOWN_MODEL, message, field=field)

    def _start(
        self, request: render_pb2.RenderChatRequest | render_pb2.RenderCompletionRequest, prefix: str
    ) -> tuple[scheduler_pb2.GenerateRequest, render_pb2.TextParams]:
        """Checks and fills in what both kinds of prompt share; the result lacks only the prompt."""
        self.check_model(request.model, f"{prefix}model")
        sampling_params = resolve(request.sampling_params, self.model.sampling_defaults)
        info = self._scheduler_info()
        validate(
            sampling_params,
            vocab_size=self.model.vocab_size,
            max_logprobs=info.max_logprobs if info else None,
            max_model_len=self.max_model_len,
            field=f"{prefix}sampling_params",
        )
        rendered = scheduler_pb2.GenerateRequest(
            request_id=request.request_id,
            model=self.model.name,
            tokenizer_fingerprint=self.tokenizer_fingerprint,
            sampling_params=sampling_params,
            priority=request.priority,
            cache_salt=request.cache_salt,
        )
        text_params = resolve_text_params(request.text_params, sampling_params, f"{prefix}text_params")
        return rendered, text_params

    def _encode(self, text: str, field: str, *, add_special_tokens: bool) -> list[int]:
        with self._stage("tokenize"):
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens, field=field)

    def _refuse_long_text(self, num_chars: int, field: str) -> None:
        """Refuses what cannot fit, however it is tokenized: that may take a minute and gigabytes."""
        max_token_chars, max_model_len = self._tokenizer.max_token_chars, self.max_model_len
        if max_token_chars is None:
            return
        min_tokens = -(-num_chars // max_token_chars)
        if min_tokens >= max_model_len:
            raise ServiceError(
                Reason.PROMPT_TOO_LONG,
                f"{field}: the prompt has {num_chars} characters, which are at least {min_tokens} tokens, of "
                f"{max_model_len} that prompt and output may have together",
                field=field,
                prompt_chars=num_chars,
                min_prompt_tokens=min_tokens,
                max_model_len=max_model_len,
            )

    def _check_token_ids(self, token_ids: Sequence[int], field: str) -> None:
        for index, token_id in enumerate(token_ids):
            if token_id >= self.model.vocab_size:
                raise out_of_range(f"{field}[{index}]", token_id, f"0 to {self.model.vocab_size - 1}")

    def _set_prompt(
        self, request: scheduler_pb2.GenerateRequest, token_ids: Sequence[int], field: str
    ) -> None:
        """Refuses a prompt that is empty or leaves no room for a token of output."""
        if not token_ids:
            raise ServiceError(Reason.EMPTY_PROMPT, f"{field}: the prompt has no tokens", field=field)
        max_model_len = self.max_model_len
        if len(token_ids) >= max_model_len:
            raise ServiceError(
                Reason.PROMPT_TOO_LONG,
                f"{field}: the prompt has {len(token_ids)} tokens, of {max_model_len} that prompt and output "
                "may have together",
                field=field,
                prompt_tokens=len(token_ids),
                max_model_len=max_model_len,
            )
        # Where they stay: a message given to another one is copied. In parts: other threads run in between.
        for start in range(0, len(token_ids), _IDS_AT_A_TIME):
            request.prompt_token_ids.extend(token_ids[start : start + _IDS_AT_A_TIME])

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Observed at its end; a stage that fails or is restarted is not observed."""
        start = perf_counter()
        yield
        self._observe(name, perf_counter() - start)
