"""The line that installs what is missing, for messages: the packages of an extra by their own names, since the name of
this project may be somebody else's in a package index, and its clone may lie anywhere."""

INSTALL = {
    "cuda12": "pip install 'cupy-cuda12x[ctk]>=14'",
    "cuda13": "pip install 'cupy-cuda13x[ctk]>=14'",
    "emulated": "pip install 'nvidia-cuda-nvrtc>=13' 'nvidia-cuda-runtime>=13'",
    "mpi": "pip install 'mpi4py>=4.1' 'mpich>=5.0'",
    "nccl12": "pip install 'nvidia-nccl-cu12>=2.27.7'",
    "nccl13": "pip install 'nvidia-nccl-cu13>=2.27.7'",
    "examples": "pip install 'scikit-learn>=1.5'",
    "profile": "pip install 'nvtx>=0.2.11'",
    "tokenizers": "pip install 'tokenizers>=0.21'",
}
