"""Random programs: no two values that live at once share a slot."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.ops import Dim, L, Program, Recorder, T, Value, pack_linear
from pelton.ops.plan import ALIGNMENT, last_uses, num_bytes, plan_buffers
from tests.ops.helpers import WEIGHTS


@st.composite
def programs(draw: st.DrawFn) -> Program:
    op = Recorder("random")
    values: list[Value] = [op.input(f"x{i}", (T, 4)) for i in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(0, 15))):
        x = draw(st.sampled_from(values))
        weight = draw(st.sampled_from([w for w in WEIGHTS if w.in_features == x.shape[1]]))
        same = [v for v in values if v.shape == (x.shape[0], weight.out_features)]
        values.append(op.linear(x, weight, draw(st.sampled_from([None, *same]))))
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    return op.finish({f"y{i}": value for i, value in enumerate(outputs)})


@settings(max_examples=200)
@given(programs(), st.sampled_from([{T: 1, L: 1}, {T: 100, L: 3}]))
def test_no_two_live_values_overlap(program: Program, sizes: dict[Dim, int]) -> None:
    plan = plan_buffers(program, sizes)
    last = last_uses(program)
    born = {value.id: -1 for value in program.inputs.values()}
    for index, launch in enumerate(program.launches):
        born |= {value.id: index for value in launch.outputs}
        assert not {plan.slot_of[v.id] for v in launch.inputs} & {plan.slot_of[v.id] for v in launch.outputs}
    extents = {}
    for value in program.values():
        start = plan.offsets[plan.slot_of[value.id]]
        assert start % ALIGNMENT == 0
        extents[value.id] = (start, start + num_bytes(value, sizes))
        assert extents[value.id][1] <= plan.arena_bytes
    for a in extents:
        for b in extents:
            live_together = born[a] <= last[b] and born[b] <= last[a]
            if a < b and live_together:
                assert extents[a][1] <= extents[b][0] or extents[b][1] <= extents[a][0]


def test_a_chain_needs_two_slots() -> None:
    op = Recorder("chain")
    x = op.input("x", (T, 4))
    weight = pack_linear(WEIGHTS[0].array)
    for _ in range(20):
        x = op.linear(x, weight)
    assert len(plan_buffers(op.finish({"y": x}), {T: 8}).offsets) == 2
