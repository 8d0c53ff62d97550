"""The model from token ids to logits: embedding, layers, final norm, output layer."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.model.backend import Backend
from services.worker.model.configuration import ModelConfig
from services.worker.model.input_batch import InputBatch
from services.worker.model.kv_cache import KVCache
from services.worker.model.layers import RmsNorm, Storage, Weights
from services.worker.model.rope import Rope


class DeepseekModel:
    """DeepseekV2ForCausalLM or DeepseekV3ForCausalLM; weights are undefined until the loader fills them."""

    def __init__(self, config: ModelConfig, backend: Backend[Any], storage: Storage) -> None:
        self.config = config
        self.backend = backend
        self.dtype = storage.dtype
        self.device = storage.device
        self._rope = Rope(config, storage.device)
        self._embed_tokens = storage.empty(config.vocab_size, config.hidden_size)
        self._layers = [
            (backend.attention_block(config, storage), backend.feed_forward_block(config, i, storage))
            for i in range(config.num_hidden_layers)
        ]
        self._norm = RmsNorm(config.hidden_size, config.rms_norm_eps, storage)
        is_tied = config.tie_word_embeddings
        self._lm_head = self._embed_tokens if is_tied else torch.empty_like(self._embed_tokens)

    def weights(self) -> Weights:
        """The tensors that the loader fills, by the checkpoint's names."""
        weights = {"model.embed_tokens.weight": self._embed_tokens, **self._norm.weights("model.norm")}
        if not self.config.tie_word_embeddings:
            weights["lm_head.weight"] = self._lm_head
        for i, blocks in enumerate(self._layers):
            for block in blocks:
                weights |= {f"model.layers.{i}.{name}": tensor for name, tensor in block.weights().items()}
        return weights

    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Runs all layers over the tokens and writes their cache rows; -> hidden [tokens, hidden_size]."""
        plan = self.backend.plan(self.config, batch, *self._rope.cos_sin(batch.positions))
        hidden = F.embedding(batch.input_ids, self._embed_tokens)
        for i, (attention, feed_forward) in enumerate(self._layers):
            hidden = attention.forward(hidden, plan, cache.layer(i))
            hidden = feed_forward.forward(hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows of `forward`'s result [rows, hidden_size] -> logits fp32 [rows, vocab_size]."""
        return F.linear(self._norm(hidden), self._lm_head).float()
