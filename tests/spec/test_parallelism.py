"""A layout that does not multiply to the world size cannot be built, and the error shows the numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipegen.spec import Parallelism, Strategy

sizes = st.integers(1, 16)


def test_the_error_shows_the_equation_with_its_numbers() -> None:
    with pytest.raises(
        ValueError, match=r"dp_replicate\(2\) \* dp_shard\(4\) \* tp\(1\) \* cp\(1\) = 8.*world_size is 16"
    ):
        Parallelism(Strategy.FSDP2_HYBRID, 2, 8, dp_replicate=2, dp_shard=4)


@given(st.sampled_from(list(Strategy)), sizes, sizes, sizes, sizes, st.integers(1, 4), st.integers(1, 4))
def test_whatever_is_built_multiplies_to_the_world_size(
    strategy: Strategy, nodes: int, gpus: int, replicate: int, shard: int, tp: int, cp: int
) -> None:
    try:
        p = Parallelism(strategy, nodes, gpus, replicate, shard, tp, cp)
    except ValueError as error:
        assert any(c.isdigit() for c in str(error))
        return
    assert p.dp_replicate * p.dp_shard * p.tp * p.cp == nodes * gpus == p.world_size


@given(st.sampled_from(list(Strategy)), st.integers(1, 4), st.sampled_from([1, 2, 4, 8]))
def test_the_usual_layout_uses_every_gpu_once(strategy: Strategy, nodes: int, gpus: int) -> None:
    try:
        p = Parallelism.of(strategy, nodes, gpus)
    except ValueError:
        assert nodes * gpus == 1 or nodes == 1 or gpus == 1 or strategy is Strategy.SINGLE
        return
    assert p.data_parallel_ranks == nodes * gpus


def test_hybrid_shards_inside_a_node_and_replicates_across() -> None:
    p = Parallelism.of(Strategy.FSDP2_HYBRID, 2, 8)
    assert (p.dp_shard, p.dp_replicate) == (8, 2)


@pytest.mark.parametrize(
    ("strategy", "kwargs"),
    [
        (Strategy.DDP, {"dp_shard": 8}),
        (Strategy.FSDP2_FULL, {"dp_replicate": 8}),
        (Strategy.FSDP2_HYBRID, {"dp_replicate": 8}),
        (Strategy.ZERO2, {"dp_replicate": 8}),
    ],
)
def test_a_strategy_that_contradicts_its_layout_is_refused(strategy: Strategy, kwargs: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="dp_"):
        Parallelism(strategy, 1, 8, **kwargs)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2"])
def test_sizes_are_whole_numbers_of_one_or_more(wrong: object) -> None:
    with pytest.raises(ValueError, match="nodes"):
        Parallelism(Strategy.DDP, wrong, 8, dp_replicate=8)  # type: ignore[arg-type]


def test_experts_are_split_over_all_ranks_of_ddp() -> None:
    mesh = Parallelism(Strategy.DDP, 1, 4, dp_replicate=4, ep=4)
    assert (mesh.world_size, mesh.data_parallel_ranks) == (4, 4)
    for strategy, kwargs in (
        (Strategy.DDP, {"dp_replicate": 4, "ep": 2}),
        (Strategy.FSDP2_FULL, {"dp_shard": 4, "ep": 4}),
        (Strategy.DDP, {"dp_replicate": 4, "ep": 0}),
    ):
        with pytest.raises(ValueError, match="ep is"):
            Parallelism(strategy, 1, 4, **kwargs)
