"""Graphs that ``torch.compile`` makes: their operators run as they are, and Inductor writes those for which it uses CuTe DSL."""

from __future__ import annotations

import operator
from typing import Any
from unittest import mock

__all__ = ["run_graph"]

# Of Inductor. What a cache has, or another process compiles, is not seen. Its patterns run operators on a device.
_SETTINGS = {
    "compile_threads": 1,
    "fx_graph_cache": False,
    "pattern_matcher": False,
    "use_joint_graph_passes": False,
}
_FLEX = "flex_attention"


def run_graph(inductor: Any, graph: Any, inputs: Any, **settings: Any) -> Any:
    """What takes the place of Inductor: a function that runs a graph that ``torch.compile`` made."""
    if not any(_is_written(node.target, node.args) for node in graph.graph.nodes):
        return graph.forward
    from torch.fx import Interpreter

    written: dict[Any, Any] = {}

    class Run(Interpreter):  # type: ignore[misc]
        def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            results = super().call_function(target, args, kwargs)
            if _is_written(target, args):
                _write_and_run(target, args, written)
            return results

    return Run(graph).run


def _is_written(target: Any, args: tuple[Any, ...]) -> bool:
    """Whether Inductor writes code for an operator that calls FlashAttention-4, which compiles with CuTe DSL."""
    if getattr(target, "__name__", "") != _FLEX or not hasattr(target, "python_key_table"):
        return False
    return any(isinstance(argument, dict) and argument.get("BACKEND") == "FLASH" for argument in args)


def _write_and_run(target: Any, args: tuple[Any, ...], written: dict[Any, Any]) -> None:
    """Call an operator by the code that Inductor writes for it alone: kernels of Triton would be written for others."""
    import torch
    from torch.utils import _pytree

    leaves, form = _pytree.tree_flatten(args)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    key = tuple(
        (leaf.dtype, *leaf.shape, *leaf.stride()) if isinstance(leaf, torch.Tensor) else str(leaf) for leaf in leaves
    )
    with mock.patch.object(torch._C._dynamo.guards, "_empty_strided_cuda", _empty):
        if key not in written:
            written[key] = _compiled(_graph_of(target, leaves, form), tensors)
        written[key](*tensors)


def _compiled(graph: Any, tensors: list[Any]) -> Any:
    import torch
    from torch._inductor.compile_fx import compile_fx
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        with FakeTensorMode():  # Inductor takes no other class for it
            examples = [
                torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device) for one in tensors
            ]
        return compile_fx(graph, examples, config_patches=_SETTINGS)


def _graph_of(target: Any, leaves: list[Any], form: Any) -> Any:
    """A graph of one operator, whose inputs are the tensors among its arguments."""
    import torch
    from torch.utils import _pytree

    root, graph, nodes = torch.nn.Module(), torch.fx.Graph(), []
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            nodes.append(graph.placeholder(f"input_{number}"))
        elif isinstance(leaf, torch.nn.Module):  # what changes or masks the scores
            root.add_module(f"part_{number}", leaf)
            nodes.append(graph.get_attr(f"part_{number}"))
        else:
            nodes.append(leaf)
    called = graph.call_function(target, _pytree.tree_unflatten(nodes, form))
    graph.output((graph.call_function(operator.getitem, (called, 0)),))
    return torch.fx.GraphModule(root, graph)


def _empty(size: Any, stride: Any, dtype: Any) -> Any:
    import torch

    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")
