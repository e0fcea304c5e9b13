"""The locator of device code: a checkout, a wheel, and a wheel beside NVIDIA's package ``cuda``."""

import pytest

from mkviz import locate
from mkviz.errors import MkvizError


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setattr(locate, "_ROOT", tmp_path)

    def add(name):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        return path

    return add


def test_a_checkout_has_one_folder(tree, tmp_path):
    header = tree("cuda/mkviz.cuh")
    assert locate.device_dirs() == (tmp_path / "cuda",)
    assert locate.device_file("mkviz.cuh") == header


def test_a_wheel_has_a_folder_in_each_package_and_ignores_nvidias(tree, tmp_path):
    tree("cuda/bindings/__init__.py")
    shared, own = tree("mkviz/include/mkviz.cuh"), tree("engine/include/megakernel.cu")
    assert locate.device_dirs() == (tmp_path / "mkviz/include", tmp_path / "engine/include")
    assert (locate.device_file("mkviz.cuh"), locate.device_file("megakernel.cu")) == (shared, own)


def test_the_viewer_alone_has_only_its_own(tree, tmp_path):
    tree("mkviz/include/mkviz.cuh")
    assert locate.device_dirs() == (tmp_path / "mkviz/include",)


def test_a_missing_file_is_named_with_the_folders_looked_in(tree, tmp_path):
    tree("cuda/mkviz.cuh")
    with pytest.raises(MkvizError, match=f"'abi.h' is not in {tmp_path / 'cuda'}; install mkviz"):
        locate.device_file("abi.h")
