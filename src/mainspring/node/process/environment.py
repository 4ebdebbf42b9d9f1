"""Which variables of its agent a rank gets: those listed here and those the site names. All others stay with the agent.

An agent may hold what no job is to have: credentials of the object store, whatever was in the shell that started the
server. So nothing is passed on unless it is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

NODE_VARIABLE = "MAINSPRING_NODE"  # A rank's node, as its cluster calls it: a pod's own name is another.
HOST_VARIABLE = "MAINSPRING_HOST"  # Where other nodes reach it: an address.
PASSED = (
    # Who and where a program is, and in which language and time zone it speaks.
    *("HOME", "LANG", "LANGUAGE", "LC_*", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "USER"),
    # Where programs, libraries and authorities to trust are found.
    *("LD_LIBRARY_PATH", "PATH", "PYTHONHASHSEED", "PYTHONPATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "VIRTUAL_ENV"),
    # Which chips and processors it has, and how it drives them.
    *(
        "CUDA_*",
        "HIP_VISIBLE_DEVICES",
        "JAX_*",
        "LIBTPU_INIT_ARGS",
        "MKL_NUM_THREADS",
        "MUJOCO_GL",
        "NPROC",
        "NVIDIA_*",
    ),
    *("OMP_*", "OPENBLAS_NUM_THREADS", "PYTORCH_*", "ROCR_VISIBLE_DEVICES", "TPU_*", "TRITON_CACHE_DIR", "XLA_*"),
    # How ranks find a way to each other.
    *("FI_*", "GLOO_*", "NCCL_*", "UCX_*"),
    # Where a program is in Slurm; the rest of a Slurm job's variables would make libraries take ranks for its tasks.
    *("SLURMD_NODENAME", "SLURM_CONF", "SLURM_JOB_ID"),
)


def rank_environment(environment: Mapping[str, str], passed: Iterable[str]) -> dict[str, str]:
    """Returns the variables that ranks start from.

    Args:
        environment: The agent's own.
        passed: Names the site passes on besides; one that ends in "*" stands for all that begin so.
    """
    wanted = (*PASSED, *passed)
    names = frozenset(name for name in wanted if not name.endswith("*"))
    prefixes = tuple(name.removesuffix("*") for name in wanted if name.endswith("*"))
    return {name: value for name, value in environment.items() if name in names or name.startswith(prefixes)}
