"""A child ends when its parent does, and removes the folder of sockets."""

import os
import subprocess
import sys

import pytest

from pelton.parent_watch import watch_parent

CHILD = """
import sys, time
from pelton.parent_watch import watch_parent
watch_parent(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
print("up", flush=True)
while True:
    time.sleep(0.001)
"""
PARENT = """
import os, subprocess, sys
read, write = os.pipe()
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(read), sys.argv[2]], pass_fds=[read])
os.close(read)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""


def run_child(*arguments, pass_fds=()):
    command = [sys.executable, "-c", CHILD, *map(str, arguments)]
    child = subprocess.Popen(command, pass_fds=pass_fds, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    return child


@pytest.mark.parametrize("has_folder", [False, True])
def test_end_of_file_ends_the_child(tmp_path, has_folder):
    folder = tmp_path / "run"
    (folder / "deep").mkdir(parents=True)
    (folder / "socket").touch()
    read, write = os.pipe()
    with run_child(read, *[folder] * has_folder, pass_fds=[read]) as child:
        os.close(read)
        os.write(write, b"whatever comes is ignored")
        assert child.poll() is None
        os.close(write)
        assert child.wait(60) == 1
    assert folder.exists() is not has_folder


def test_a_folder_that_is_gone_does_not_matter(tmp_path):
    read, write = os.pipe()
    with run_child(read, tmp_path / "none", pass_fds=[read]) as child:
        os.close(read)
        os.close(write)
        assert child.wait(60) == 1


def test_a_parent_that_is_killed(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    command = [sys.executable, "-c", PARENT, CHILD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "up\n"
        parent.stdin.close()
        assert parent.wait(60) == -9
        assert parent.stdout.read() == ""  # the child has the other end of it, so it has ended too
    assert not folder.exists()


def test_a_file_that_is_not_open():
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    with pytest.raises(OSError, match="Bad file descriptor"):
        watch_parent(read)
