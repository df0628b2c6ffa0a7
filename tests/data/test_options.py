from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

OPTIONS = sorted((Path(__file__).parents[2] / "conf" / "data").glob("*.yaml"))


@pytest.mark.parametrize("path", OPTIONS, ids=lambda p: p.stem)
def test_option_lists_all_fields_with_their_defaults(path):
    assert path.read_text().startswith("# ")
    option = OmegaConf.to_container(OmegaConf.load(path))
    part = get_class(option.pop("_target_"))
    option.pop("_convert_", None)
    assert part.__module__ == f"rlmods.data.{path.stem}"
    assert option == {
        f.name: f.default if f.default is not MISSING else f.default_factory() for f in fields(part)
    }
