"""The free-block queue against a plain list."""

from hypothesis import given
from hypothesis import strategies as st

from pelton.kv.block import Block, FreeBlockQueue

OPERATIONS = st.lists(st.tuples(st.sampled_from(["pop", "append", "prepend", "remove"]), st.integers(0, 9)))


@given(OPERATIONS)
def test_behaves_like_a_list(operations):
    blocks = [Block(i) for i in range(10)]
    queue, model = FreeBlockQueue(), []
    for operation, index in operations:
        block = blocks[index]
        if operation == "pop" and model:
            assert queue.pop_first() is model.pop(0)
        elif operation == "append" and block not in model:
            queue.append(block)
            model.append(block)
        elif operation == "prepend" and block not in model:
            queue.prepend(block)
            model.insert(0, block)
        elif operation == "remove" and block in model:
            queue.remove(block)
            model.remove(block)
        assert list(queue) == model
        assert queue.size == len(model)
