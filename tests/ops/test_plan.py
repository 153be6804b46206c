"""Random programs: no two values that live at once share memory, and outputs share theirs with nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.ops import Dim, L, Program, Recorder, T, Value
from pelton.ops.plan import ALIGNMENT, last_uses, num_bytes, plan_buffers
from tests.ops.helpers import WEIGHTS


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Over rows of T and of L."""
    op = Recorder("random")
    values: list[Value] = [
        op.input(f"x{i}", (draw(st.sampled_from([T, L])), 4)) for i in range(draw(st.integers(1, 3)))
    ]
    rows = op.input("rows", (L,), "int32")
    for _ in range(draw(st.integers(0, 15))):
        x = draw(st.sampled_from(values))
        if draw(st.booleans()):
            values.append(op.gather_rows(x, rows))
            continue
        weight = draw(st.sampled_from([w for w in WEIGHTS if w.in_features == x.shape[1]]))
        same = [v for v in values if v.shape == (x.shape[0], weight.out_features)]
        values.append(op.linear(x, weight, draw(st.sampled_from([None, *same]))))
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    return op.finish({f"y{i}": value for i, value in enumerate(outputs)})


@settings(max_examples=200)
@given(
    programs(), st.sampled_from([{T: 1, L: 1}, {T: 100, L: 3}, {T: 5, L: 70}]), st.sampled_from([None, (L, 1), (L, 16)])
)
def test_no_two_live_values_overlap(program: Program, sizes: dict[Dim, int], tile: tuple[Dim, int] | None) -> None:
    plan = plan_buffers(program, sizes, tile)
    made = [value for launch in program.launches for value in launch.outputs]
    assert plan.slot_of.keys() == {value.id for value in made}
    last = last_uses(program)
    born: dict[int, int] = {}
    for index, launch in enumerate(program.launches):
        born |= {value.id: index for value in launch.outputs}
        inputs = {plan.slot_of[value.id] for value in launch.inputs if value.id in plan.slot_of}
        assert not inputs & {plan.slot_of[value.id] for value in launch.outputs}
    kept = {value.id for value in program.outputs.values()}
    extents = {}
    for value in made:
        start = plan.offsets[plan.slot_of[value.id]]
        assert start % ALIGNMENT == 0
        own = sizes
        if tile is not None and value.id not in kept:
            own = sizes | {L: min(tile[1], sizes[L])}
        extents[value.id] = (start, start + num_bytes(value, own))
        assert extents[value.id][1] <= plan.arena_bytes
    for a in extents:
        for b in extents:
            live_together = born[a] <= last[b] and born[b] <= last[a]
            if a < b and (live_together or {a, b} & kept):
                assert extents[a][1] <= extents[b][0] or extents[b][1] <= extents[a][0]


def chain(length: int) -> Program:
    op = Recorder("chain")
    x = op.input("x", (L, 4))
    for _ in range(length):
        x = op.linear(x, WEIGHTS[0])
    return op.finish({"y": x})


def test_a_chain_needs_two_slots_and_one_for_what_comes_out() -> None:
    plan = plan_buffers(chain(20), {L: 8})
    assert len(plan.offsets) == 3
    assert plan.arena_bytes == 3 * 8 * 4 * 4


def test_only_what_comes_out_has_all_rows_of_a_tiled_dimension() -> None:
    plan = plan_buffers(chain(20), {L: 800}, (L, 8))
    assert plan.arena_bytes == (800 + 2 * 8) * 4 * 4
    assert plan_buffers(chain(20), {L: 4}, (L, 8)).arena_bytes == 3 * 4 * 4 * 4
