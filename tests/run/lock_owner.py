"""Lock a run directory until killed: `python -m tests.run.lock_owner FOLDER` prints the ids of its
children, a program and a fork."""

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

from rlmods.run import directory

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    directory.acquire(Path(sys.argv[1]))
    directory.write_owner(Path(sys.argv[1]))
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    ready, signal = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.write(signal, b".")  # the fork has closed its copy of the lock
        time.sleep(60)
        os._exit(0)
    os.read(ready, 1)
    print(program.pid, fork, flush=True)
    time.sleep(600)
