"""Multi-head Latent Attention, in its two forms.

DeepSeek-V2 (arXiv:2405.04434, §2.1 and appendix C). For the input h of one token at position p, all bias-free
but the two down-projections and o_proj, and with the softmax scale s of model/rope.py:

    q           = q_b_proj(norm(q_a_proj h)), or q_proj h      per head: q_nope ++ q_pe; q_pe rotated by p
    kv_c ++ k_pe = kv_a_proj_with_mqa h                        k_pe rotated by p, shared by all heads
    kv_c_normed = norm(kv_c)                                   the norm covers the latent, not k_pe
    cache row   = kv_c_normed ++ k_pe
    W_UK, W_UV  = kv_b_proj, split per head as [nope | v]      per head [nope, lora] and [v, lora]

mha, keys and values materialised from the rows r of the context:

    k = (W_UK kv_c_normed) ++ k_pe        v = W_UV kv_c_normed
    o = Σ_r softmax_r(s · q·k_r) v_r

mqa, absorbed: all heads attend to the rows themselves, as one shared key of lora + rope dimensions:

    s · q·k_r = s · ((W_UKᵀ q_nope) ++ q_pe) · row_r           since q_nope·(W_UK c) = (W_UKᵀ q_nope)·c
    o = W_UV Σ_r softmax_r(…) kv_c_normed_r                    since W_UV is linear

Both end in o_proj(o of all heads). They are equal up to rounding.

No temporary tensor has more than about `MAX_SCRATCH` elements, whatever the context: keys are processed in
tiles, and each tile's partial result is merged into that of the tiles before it (arXiv:2205.14135, §3.1).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from services.worker.model.configuration import ModelConfig
from services.worker.model.layers import Linear, RmsNorm, Storage, Weights
from services.worker.model.rope import rotate, softmax_scale

# DeepSeek's code leaves the inner norms at this value, whatever rms_norm_eps says.
INNER_NORM_EPS = 1e-6
# Elements: 32 MiB in fp32, large enough for matmuls to run at full speed.
MAX_SCRATCH = 8 * 1024 * 1024


def is_mha_cheaper(config: ModelConfig, query_len: int, seq_len: int) -> bool:
    """Whether mha needs fewer multiply-adds than mqa, per head, for query_len tokens over seq_len.

    Per pair of query and context token the two cost their key and value widths. On top, mha expands each
    context token once and mqa absorbs W_UK and W_UV once per query, the same kv_lora_rank × (nope + v) each
    time. For long contexts this is a threshold on query_len that depends on the sizes alone.
    """
    expansion = config.kv_lora_rank * (config.qk_nope_head_dim + config.v_head_dim)
    mha = query_len * seq_len * (config.qk_head_dim + config.v_head_dim) + seq_len * expansion
    mqa = query_len * seq_len * (config.cache_row_size + config.kv_lora_rank) + query_len * expansion
    return mha < mqa


class Mla:
    """One layer's projections and the two forms. `H` heads; sizes by the config's names.

    A masked key scores the type's smallest number, not -inf: a tile in which a query sees nothing then weighs
    exactly 0 when it is merged, not NaN.
    """

    def __init__(self, config: ModelConfig, storage: Storage) -> None:
        self._config = config
        self._scale = softmax_scale(config)
        hidden, num_heads, bias = config.hidden_size, config.num_attention_heads, config.attention_bias
        q_size = num_heads * config.qk_head_dim
        if config.q_lora_rank is None:
            self._q_proj = Linear(hidden, q_size, storage)
        else:
            self._q_a_proj = Linear(hidden, config.q_lora_rank, storage, bias=bias)
            self._q_a_layernorm = RmsNorm(config.q_lora_rank, INNER_NORM_EPS, storage)
            self._q_b_proj = Linear(config.q_lora_rank, q_size, storage)
        self._kv_a_proj_with_mqa = Linear(hidden, config.cache_row_size, storage, bias=bias)
        self._kv_a_layernorm = RmsNorm(config.kv_lora_rank, INNER_NORM_EPS, storage)
        kv_size = num_heads * (config.qk_nope_head_dim + config.v_head_dim)
        self._kv_b_proj = Linear(config.kv_lora_rank, kv_size, storage)
        self._o_proj = Linear(num_heads * config.v_head_dim, hidden, storage, bias=bias)
        # Views [H, nope, lora] and [H, v, lora] of the one matrix, which mha multiplies by as it is.
        per_head = self._kv_b_proj.weight.unflatten(0, (num_heads, -1))
        self._w_uk, self._w_uv = per_head.split((config.qk_nope_head_dim, config.v_head_dim), dim=1)

    def weights(self, name: str) -> Weights:
        names = ["kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"]
        names += ["q_proj"] if self._config.q_lora_rank is None else ["q_a_proj", "q_a_layernorm", "q_b_proj"]
        parts = {f"{name}.{part}": getattr(self, f"_{part}") for part in names}
        return {key: tensor for part, module in parts.items() for key, tensor in module.weights(part).items()}

    def project_query(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """x [tokens, hidden] -> q_nope [tokens, H, nope], q_pe [tokens, H, rope], both × softmax scale."""
        if self._config.q_lora_rank is None:
            q = self._q_proj(x)
        else:
            q = self._q_b_proj(self._q_a_layernorm(self._q_a_proj(x)))
        q = q.mul_(self._scale).unflatten(1, (self._config.num_attention_heads, -1))
        q_nope, q_pe = q.split((self._config.qk_nope_head_dim, self._config.qk_rope_head_dim), dim=-1)
        return q_nope, rotate(q_pe, cos, sin)

    def project_rows(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [tokens, hidden] -> the tokens' cache rows [tokens, lora + rope]."""
        kv_c, k_pe = self._split(self._kv_a_proj_with_mqa(x))
        return torch.cat((self._kv_a_layernorm(kv_c), rotate(k_pe[:, None], cos, sin)[:, 0]), dim=-1)

    def project_output(self, heads: Tensor, residual: Tensor) -> Tensor:
        """residual [tokens, hidden] + o_proj of heads [tokens, H, v]."""
        return residual + self._o_proj(heads.flatten(1))

    def attend_mha(self, q_nope: Tensor, q_pe: Tensor, cache_layer: Tensor, slots: Tensor) -> Tensor:
        """One sequence: its queries [queries, H, …] are the last of slots [seq_len]; -> [queries, H, v]."""
        num_queries, num_heads, _ = q_nope.shape
        seq_len, v_head_dim = len(slots), self._config.v_head_dim
        context_len = seq_len - num_queries
        key_tile = _tile_size(seq_len, num_heads * (self._config.qk_head_dim + v_head_dim))
        query_tile = _tile_size(num_queries, num_heads * key_tile)
        query = torch.cat((q_nope, q_pe), dim=-1).transpose(0, 1)
        merged = _Merged((num_heads, num_queries, v_head_dim), query, is_single=key_tile == seq_len)
        for first_key, end_key in _tiles(seq_len, key_tile):
            kv_c, k_pe = self._split(cache_layer.index_select(0, slots[first_key:end_key]))
            kv = self._kv_b_proj(kv_c).unflatten(1, (num_heads, -1)).transpose(0, 1)
            k_nope, values = kv.split((self._config.qk_nope_head_dim, v_head_dim), dim=-1)
            keys = torch.cat((k_nope, k_pe.expand(num_heads, -1, -1)), dim=-1)
            for first, end in _tiles(num_queries, query_tile):
                # Keys past the tile's last query are hidden from all of it.
                num_keys = min(end_key, context_len + end) - first_key
                if num_keys <= 0:
                    continue
                scores = torch.bmm(query[:, first:end], keys[:, :num_keys].transpose(1, 2))
                # Every query of the tile sees the keys up to the first query's own.
                num_seen = max(0, context_len + first + 1 - first_key)
                _hide_future(scores[:, :, num_seen:], context_len + first, first_key + num_seen)
                merged.add(scores, values[:, :num_keys], slice(first, end))
        return merged.values.transpose(0, 1)

    def attend_mqa(
        self, q_nope: Tensor, q_pe: Tensor, cache_layer: Tensor, slots: Tensor, positions: Tensor
    ) -> Tensor:
        """Sequences with equally many queries each, at positions [sequences, queries].

        q_nope and q_pe [sequences × queries, H, …]; slots [sequences, keys], a sequence's own first, then the
        null slot; -> [sequences × queries, H, v].
        """
        num_sequences, num_queries = positions.shape
        num_heads, row_size = self._config.num_attention_heads, self._config.cache_row_size
        absorbed = torch.bmm(q_nope.transpose(0, 1), self._w_uk).transpose(0, 1)
        query = torch.cat((absorbed, q_pe), dim=-1).view(num_sequences, num_queries * num_heads, row_size)
        num_keys = slots.shape[1]
        key_tile = _tile_size(num_keys, num_sequences * max(row_size, num_queries * num_heads))
        shape = (num_sequences, num_queries * num_heads, self._config.kv_lora_rank)
        merged = _Merged(shape, query, is_single=key_tile == num_keys)
        for first_key, end_key in _tiles(num_keys, key_tile):
            tile_slots = slots[:, first_key:end_key]
            rows = cache_layer.index_select(0, tile_slots.flatten()).view(*tile_slots.shape, row_size)
            scores = torch.bmm(query, rows.transpose(1, 2))
            keys = torch.arange(first_key, end_key, device=slots.device)
            is_hidden = (keys > positions[:, :, None])[:, :, None]
            by_query = scores.unflatten(1, (num_queries, num_heads))
            by_query.masked_fill_(is_hidden, torch.finfo(scores.dtype).min)
            merged.add(scores, self._split(rows)[0])
        latent = merged.values.reshape(-1, num_heads, self._config.kv_lora_rank).transpose(0, 1)
        return torch.bmm(latent, self._w_uv.transpose(1, 2)).transpose(0, 1)

    def _split(self, rows: Tensor) -> tuple[Tensor, ...]:
        return rows.split((self._config.kv_lora_rank, self._config.qk_rope_head_dim), dim=-1)


class _Merged:
    """Softmax-weighted values over the tiles so far (online softmax, arXiv:1805.02867).

    Every query sees a key of the first tile, so from then on its largest score is not a masked one.
    """

    def __init__(self, shape: tuple[int, int, int], like: Tensor, *, is_single: bool) -> None:
        self._is_single = is_single
        self._dtype = like.dtype
        # Over several tiles the sums are kept in fp32 at least.
        dtype = like.dtype if is_single else torch.promote_types(like.dtype, torch.float32)
        self._sum = torch.zeros(shape, dtype=dtype, device=like.device)
        self._weight = self._sum.new_zeros((*shape[:2], 1))
        self._largest = self._sum.new_full((*shape[:2], 1), torch.finfo(dtype).min)

    @property
    def values(self) -> Tensor:
        """The result, in the queries' type."""
        return self._sum if self._is_single else (self._sum / self._weight).to(self._dtype)

    def add(self, scores: Tensor, values: Tensor, queries: slice = slice(None)) -> None:
        """Adds a tile: scores [batch, queries, keys], which it overwrites, and values [batch, keys, size]."""
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if self._is_single:
            self._sum[:, queries] = torch.bmm(scores.softmax(-1).to(values.dtype), values)
            return
        before = self._largest[:, queries]
        largest = torch.maximum(before, scores.amax(-1, keepdim=True))
        weights = scores.sub_(largest).exp_()
        shrink = (before - largest).exp()
        self._weight[:, queries] = self._weight[:, queries] * shrink + weights.sum(-1, keepdim=True)
        part = torch.bmm(weights.to(values.dtype), values)
        self._sum[:, queries] = self._sum[:, queries] * shrink + part
        self._largest[:, queries] = largest


def _hide_future(scores: Tensor, first_query: int, first_key: int) -> None:
    """Masks keys after their query: scores [heads, queries, keys], from these positions onwards."""
    queries = torch.arange(first_query, first_query + scores.shape[1], device=scores.device)
    keys = torch.arange(first_key, first_key + scores.shape[2], device=scores.device)
    scores.masked_fill_(keys > queries[:, None], torch.finfo(scores.dtype).min)


def _tile_size(length: int, elements_each: int) -> int:
    """Items per tile, given `length` items and the elements of each."""
    return min(length, max(1, MAX_SCRATCH // elements_each))


def _tiles(length: int, size: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + size, length)) for start in range(0, length, size))
