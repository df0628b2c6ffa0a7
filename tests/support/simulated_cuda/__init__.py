"""A CUDA device without a GPU: tensors say that they are on `cuda:0`, and keep their data in
processor memory.

    python -m tests.support.simulated_cuda train.py algo=dapo trainer.max_iterations=1

The unchanged program runs Lightning's CUDA accelerator, autocast, backward in the thread of the
device, fused optimizers, checkpoints and export. It fails where tensors of two devices meet, as on
a GPU. Counted are kernel launches, waits of the host for the device, copies to the device, and the
attention kernel of each call (`counts`). Real kernels, memory, speed, streams and collectives of
NCCL are not simulated.

Torch must not be imported before `device.load`, so a program needs a process of its own."""
