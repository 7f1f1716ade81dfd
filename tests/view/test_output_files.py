"""Files in the output folder, and inputs dropped onto the page."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from subgraph.errors import InputError
from subgraph.view.output_files import DROPPED, OutputFiles


def test_file_of_another_kind_or_cut_short_is_refused(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path)
    for name, size, code in (
        ("x.pkl", 2, "input.unknown-kind"),
        ("x.npy", 3, "view.upload-cut-short"),
    ):
        with pytest.raises(InputError) as error:
            files.drop(name, io.BytesIO(b"12"), size)
        assert error.value.code == code
    assert not list((tmp_path / DROPPED).iterdir())
