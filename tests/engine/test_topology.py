"""Which addresses the processes of a run have."""

import stat
import tempfile
from pathlib import Path

import pytest

from pelton.engine.topology import Endpoints, Topology, private_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def is_private(folder: Path) -> bool:
    return stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_private_folder():
    with private_folder() as folder:
        assert is_private(Path(folder))
        (Path(folder) / "file").touch()
    assert not Path(folder).exists()


def test_one_machine(temporary):
    endpoints = Endpoints.make(Topology(num_ranks=3, num_local_ranks=3, num_front_ends=2))
    folder = Path(endpoints.runtime_dir)
    assert folder.parent == temporary
    assert is_private(folder)
    assert (endpoints.remote, endpoints.remote_control) == (None, None)
    local = endpoints.local
    addresses = [
        endpoints.control,
        *local.front_end_inputs,
        *local.front_end_outputs,
        local.coordinator_loads,
        local.coordinator_waves,
        local.coordinator_published,
        endpoints.lockstep(0),
    ]
    assert len(set(addresses)) == 9
    assert all(address.startswith(f"ipc://{folder}/") for address in addresses)
    endpoints.remove()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["x" * 80, "é" * 50])
def test_a_long_path_of_temporary_files(temporary, monkeypatch, name):
    """Addresses of Unix sockets are short."""
    (temporary / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / name))
    endpoints = Endpoints.make(Topology(num_ranks=2, num_local_ranks=2))
    assert Path(endpoints.runtime_dir).parent == Path("/tmp")
    assert is_private(Path(endpoints.runtime_dir))
    assert list((temporary / name).iterdir()) == []
    endpoints.remove()
    assert not Path(endpoints.runtime_dir).exists()


def test_no_place_for_temporary_files(temporary, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "none"))
    with pytest.raises(ValueError, match=r"no folder for the sockets of the engine's processes .*; set TMPDIR"):
        Endpoints.make(Topology())


def test_a_single_core_has_no_coordinator():
    local = Endpoints.make(Topology()).local
    assert local.coordinator_loads is local.coordinator_published is local.coordinator_waves is None


def test_every_front_end_has_its_own():
    topology = Topology(num_ranks=2, num_local_ranks=2, num_front_ends=2)
    endpoints = Endpoints.make(topology)
    first, second = (endpoints.front_end(index, topology) for index in range(2))
    assert (first.index, second.index) == (0, 1)
    assert not {*first.inputs, *first.outputs} & {*second.inputs, *second.outputs}
    assert first.control == second.control == endpoints.control
    assert first.published == second.published == endpoints.local.coordinator_published
    assert (first.num_ranks, first.num_front_ends) == (2, 2)


def test_every_life_of_a_group_has_its_own_address():
    endpoints = Endpoints.make(Topology(num_ranks=2, num_local_ranks=2))
    assert len({endpoints.lockstep(generation) for generation in range(5)}) == 5
    assert Endpoints.make(Topology()).lockstep(0) is None


def test_other_nodes():
    topology = Topology(num_ranks=4, num_local_ranks=1, num_front_ends=2, rpc_port=29550)
    assert topology.has_other_nodes
    assert topology.local_ranks == range(1)
    endpoints = Endpoints.make(topology)
    assert endpoints.remote_control == "tcp://127.0.0.1:29550"
    remote = endpoints.remote
    addresses = [
        *remote.front_end_inputs,
        *remote.front_end_outputs,
        remote.coordinator_loads,
        remote.coordinator_waves,
    ]
    assert all(address.startswith("tcp://127.0.0.1:") for address in addresses)
    assert endpoints.control.startswith("ipc://")
    assert endpoints.lockstep(0) == "", "a group must be on one machine"
    front_end = endpoints.front_end(1, topology)
    assert front_end.inputs == [endpoints.local.front_end_inputs[1], remote.front_end_inputs[1]]
    assert front_end.outputs == [endpoints.local.front_end_outputs[1], remote.front_end_outputs[1]]


def test_the_addresses_of_other_nodes_differ():
    """A port that is only looked for is free until it is bound, and may be found twice."""
    topology = Topology(num_ranks=4, num_local_ranks=1, num_front_ends=40, rpc_port=29550)
    remote = Endpoints.make(topology).remote
    addresses = [
        *remote.front_end_inputs,
        *remote.front_end_outputs,
        remote.coordinator_loads,
        remote.coordinator_waves,
        remote.coordinator_published,
    ]
    assert len(set(addresses)) == len(addresses)


def test_an_address_of_another_machine(temporary):
    topology = Topology(num_ranks=2, num_local_ranks=1, address="192.0.2.7", rpc_port=29550)
    with pytest.raises(
        ValueError, match=r"data_parallel_address is '192\.0\.2\.7', which is no address of this machine"
    ):
        Endpoints.make(topology)
    assert list(temporary.iterdir()) == []


def test_ranks_of_a_node():
    assert Topology(num_ranks=4, num_local_ranks=2, start_rank=2).local_ranks == range(2, 4)
    assert not Topology(num_ranks=4, num_local_ranks=4).has_other_nodes
