"""Settings of the model, pretraining, fine-tuning and the registry."""

from typing import Literal, Self

from pydantic import Field, model_validator

from albert_core.contract.settings import Settings

Sharing = Literal["all", "attention", "ffn", "none"]
Activation = Literal["gelu_new", "gelu", "relu", "tanh"]


class ModelSettings(Settings):
    """The encoder's shape. Defaults: ALBERT base, v2. Source: paper Table 1, REFERENCE.md A.2."""

    embedding_size: int = Field(default=128, ge=1, description="E; equal to H: no projection")
    hidden_size: int = Field(default=768, ge=1, description="H")
    num_hidden_layers: int = Field(default=12, ge=1, description="L")
    num_attention_heads: int = Field(default=12, ge=1, description="N")
    intermediate_size: int = Field(default=3072, ge=1, description="F")
    sharing: Sharing = Field(default="all", description="what the layers share")
    num_hidden_groups: int = Field(default=1, ge=1, description="groups of layers that share")
    inner_group_num: int = Field(default=1, ge=1, description="blocks in a layer of a group")
    hidden_act: Activation = Field(default="gelu_new", description="gelu_new: tanh approximation")
    hidden_dropout_prob: float = Field(default=0.0, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(default=0.0, ge=0, lt=1)
    max_position_embeddings: int = Field(default=512, ge=1)
    type_vocab_size: int = Field(default=2, ge=2)
    initializer_range: float = Field(default=0.02, gt=0, description="of a truncated normal")

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}"
            )
        if self.num_hidden_groups > self.num_hidden_layers:
            raise ValueError(
                f"num_hidden_groups {self.num_hidden_groups} exceeds num_hidden_layers "
                f"{self.num_hidden_layers}"
            )
        return self


class TrainingSettings(Settings):
    """Pretraining. Defaults: the paper's. Source: REFERENCE.md C.4."""

    num_steps: int = Field(default=125_000, ge=1, description="optimizer updates")
    batch_size: int = Field(default=4096, ge=1, description="examples in one update, all ranks")
    micro_batch_size: int = Field(default=16, ge=1, description="examples in one forward pass")
    optimizer: Literal["lamb", "adamw"] = "lamb"
    learning_rate: float = Field(default=0.00176, gt=0, description="peak")
    warmup_steps: int = Field(default=3125, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0, description="global norm")
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="of the matrix products; weights stay float32"
    )
    log_steps: int = Field(default=100, ge=1, description="updates between two progress lines")
    checkpoint_steps: int = Field(default=5000, ge=1, description="updates between checkpoints")
    keep_checkpoints: int = Field(default=5, ge=1)
    max_evaluation_examples: int = Field(default=10_000, ge=2, description="held-out examples")
    seed: int = Field(default=12345, ge=0)

    @model_validator(mode="after")
    def _batch_is_whole(self) -> Self:
        if self.warmup_steps >= self.num_steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} must be below num_steps {self.num_steps}"
            )
        return self


class FinetuningSettings(Settings):
    """Fine-tuning on one downstream task. Source: paper Table 14, REFERENCE.md D.1 (CoLA)."""

    task: Literal["cola", "sst-2"] = "cola"
    num_steps: int = Field(default=5336, ge=1, description="optimizer updates")
    batch_size: int = Field(default=16, ge=1)
    learning_rate: float = Field(default=1e-5, gt=0, description="peak")
    warmup_steps: int = Field(default=320, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_seq_length: int = Field(default=512, ge=8, description="pieces, special ones included")
    classifier_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    evaluation_steps: int = Field(default=100, ge=1, description="updates between evaluations")
    seed: int = Field(default=12345, ge=0)

    @model_validator(mode="after")
    def _warm_up_ends(self) -> Self:
        if self.warmup_steps >= self.num_steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} must be below num_steps {self.num_steps}"
            )
        return self


class RegistrySettings(Settings):
    """Where a finished model is registered and what makes it champion."""

    model_name: str = Field(default="albert", min_length=1, description="registered model's name")
    min_score_gain: float = Field(
        default=0.0, description="what a candidate's score must exceed the champion's by"
    )
