"""The properties of whatever asks, or judges, about the model and the runtime of one judge."""

from __future__ import annotations

from functools import cached_property

from subgraph.graph.graph import Graph
from subgraph.trials.candidate_runtime import CandidateRuntime
from subgraph.trials.judge import Judge
from subgraph.trials.model_writer import ModelWriter
from subgraph.trials.reference_model import ReferenceModel


class JudgeProperties:
    """Properties of an object with a judge."""

    judge: Judge

    @property
    def model(self) -> ReferenceModel:
        """The model on the reference: values, cuts, rounding noise."""
        return self.judge.model

    @property
    def graph(self) -> Graph:
        """The model."""
        return self.judge.model.graph

    @property
    def runtime(self) -> CandidateRuntime:
        """The runtime under test."""
        return self.judge.runtime

    @cached_property
    def writer(self) -> ModelWriter:
        """The writer of the models that the candidate is given."""
        return ModelWriter(self.model, self.runtime)
