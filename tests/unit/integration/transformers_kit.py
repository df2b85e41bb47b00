"""What `hyperparameter_search` uses of Transformers, for tests where it is not installed.

The model is a number that the training moves to 1, so each evaluation tells how far it has come.
The order of events, and what a trainer derives from its arguments when it is made, are as in
Transformers.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest


class BestRun(NamedTuple):
    run_id: str
    objective: Any
    hyperparameters: dict[str, Any]
    run_summary: Any = None


@dataclass
class TrainingArguments:
    output_dir: str = "output"
    learning_rate: float = 0.1
    num_train_epochs: int = 4
    per_device_train_batch_size: int = 8
    eval_strategy: str = "epoch"
    save_strategy: str = "epoch"
    save_steps: int = 500
    save_total_limit: int | None = None
    label_smoothing_factor: float = 0.0
    neftune_noise_alpha: float | None = None
    push_to_hub: bool = False
    hub_token: str | None = None
    #: The older name; Transformers 4 has both.
    push_to_hub_token: str | None = None
    skip_memory_metrics: bool = True
    n_gpu: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.push_to_hub_token is not None:
            self.hub_token = self.push_to_hub_token

    @property
    def train_batch_size(self) -> int:
        return self.per_device_train_batch_size


class DefaultFlow:
    def on_step_end(self, args: Any, state: Any, control: Any) -> None:
        if args.save_strategy == "steps" and state.global_step % args.save_steps == 0:
            control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any) -> None:
        control.should_evaluate = args.eval_strategy == "epoch"
        control.should_save = control.should_save or args.save_strategy == "epoch"


class ProgressCallback:
    """Draws a progress bar, which a trial has not."""


class Trainer:
    def __init__(
        self,
        args: TrainingArguments,
        model_init: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        callbacks: Any = (),
    ) -> None:
        self.args, self.model_init = args, model_init
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self._train_batch_size = args.train_batch_size
        self.neftune_noise_alpha = self.label_smoother = None
        self.model = self.model_wrapped = None if model_init is None else {"weight": 0.0}
        self.optimizer = self.lr_scheduler = None
        self.callback_handler = SimpleNamespace(
            callbacks=[DefaultFlow(), *callbacks, ProgressCallback()], model=self.model
        )
        self.control = SimpleNamespace(should_save=False, should_evaluate=False)
        self.state = SimpleNamespace(global_step=0)
        self.is_in_train = False
        self.place_model_on_device = True
        self.create_accelerator_and_postprocess()

    def create_accelerator_and_postprocess(self) -> None:
        self.accelerator = object()
        self.is_fsdp_enabled = self.is_deepspeed_enabled = False

    def create_scheduler(self) -> Any:
        rate = self.args.learning_rate
        group = {"params": [], "lr": rate, "initial_lr": rate, "weight_decay": 0.0}
        self.optimizer = SimpleNamespace(param_groups=[group])
        self.lr_scheduler = SimpleNamespace(base_lrs=[rate])

    def get_eval_dataloader(self) -> Any:
        return self.eval_dataset

    def train(self, resume_from_checkpoint: str | None = None) -> None:
        self.is_in_train = True
        self.model = self.model_init()
        self.create_scheduler()
        per_epoch = len(self.train_dataset) // self._train_batch_size
        self.state = SimpleNamespace(global_step=0, max_steps=per_epoch * self.args.num_train_epochs)
        if resume_from_checkpoint is not None:
            self._load(Path(resume_from_checkpoint))
        self._event("on_train_begin")
        while self.state.global_step < self.state.max_steps:
            self.state.global_step += 1
            rate = self.optimizer.param_groups[0]["lr"]
            self.model["weight"] += rate * (1 - self.model["weight"])
            self._event("on_step_end")
            self._evaluate_and_save()
            if self.state.global_step % per_epoch == 0:
                self._event("on_epoch_end")
                self._evaluate_and_save()
        self.is_in_train = False

    def evaluate(self, eval_dataset: Any = None) -> dict[str, float]:
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(data, dict):
            parts = {name: self.evaluate(rows) for name, rows in data.items()}
            return {f"eval_{name}_loss": part["eval_loss"] for name, part in parts.items()}
        rate = self.optimizer.param_groups[0]["lr"]
        self.control.should_evaluate = False
        return {"eval_loss": 1 - self.model["weight"], "rate": rate}

    def _evaluate_and_save(self) -> None:
        if self.control.should_evaluate:
            self.evaluate()
        if self.control.should_save:
            folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
            folder.mkdir(parents=True)
            state = [self.state.global_step, self.model, self.optimizer.param_groups]
            (folder / "state.json").write_text(json.dumps(state))
            self.control.should_save = False
            self._event("on_save")

    def _load(self, folder: Path) -> None:
        step, self.model, groups = json.loads((folder / "state.json").read_text())
        self.state.global_step = step
        self.optimizer.param_groups[:] = groups

    def _event(self, name: str) -> None:
        for callback in self.callback_handler.callbacks:
            if hasattr(callback, name):
                getattr(callback, name)(self.args, self.state, self.control)


def default_compute_objective(metrics: dict[str, float]) -> float:
    return metrics["eval_loss"]


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this module be imported as Transformers until the test ends."""
    here = sys.modules[__name__]
    parts = ModuleType("transformers.trainer_pt_utils")
    parts.LabelSmoother = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", here)
    monkeypatch.setitem(sys.modules, "transformers.trainer_utils", here)
    monkeypatch.setitem(sys.modules, "transformers.trainer_pt_utils", parts)
