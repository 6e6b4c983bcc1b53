"""The class map in its forms, and what is wrong with a wrong one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import examples
from histobench.core.errors import HistobenchError
from histobench.roi.data.class_map import classes_of, read_class_map

EXAMPLE = Path(__file__).resolve().parents[3] / "example_dataset" / "CRC-100K.txt"
CRC = ("NORM", "STR", "TUM", "MUS", "MUC", "LYM", "DEB", "BACK", "ADI")

# One line of text as a person may write it, commas and colons included.
NAMES = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters="\ufeff"), min_size=1
).filter(lambda name: name == name.strip())
CLASS_LISTS = st.lists(NAMES, min_size=1, max_size=8, unique=True)
quick = settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def write(folder: Path, text: str) -> Path:
    path = folder / "classes.txt"
    path.write_bytes(text.encode())
    return path


def test_the_example_of_the_documentation_is_read() -> None:
    assert read_class_map(EXAMPLE) == CRC


@pytest.mark.parametrize(
    "text",
    [
        "B,1\nA,0\nC,2\n",
        "1:B\n0:A\n2:C",
        "A\nB\nC\n",
        "1,B\n0,A\n2,C",
        "B:1\nA:0\nC:2",
        "\ufeffA,0\r\nB,1\r\nC,2\r\n",
        "\n\n  A , 0\n\n B ,1\nC, 2  \n\n",
        "name,id\nA,0\nB,1\nC,2\n",
        "A,0.0\nB,1.0\nC,2.0\n",
        "A\rB\rC",
    ],
)
def test_every_form_gives_the_names_in_the_order_of_their_ids(tmp_path: Path, text: str) -> None:
    assert read_class_map(write(tmp_path, text)) == ("A", "B", "C")


def test_names_may_contain_commas_and_colons(tmp_path: Path) -> None:
    text = "stroma, loose,0\nratio 1:2,1\nmucus: extracellular, abundant,2\n"
    assert read_class_map(write(tmp_path, text)) == (
        "stroma, loose",
        "ratio 1:2",
        "mucus: extracellular, abundant",
    )
    assert read_class_map(write(tmp_path, "0:a:b,c\n1:d, 7\n")) == ("a:b,c", "d, 7")
    assert read_class_map(write(tmp_path, "adipose, fat\nmuscle: smooth\n")) == (
        "adipose, fat",
        "muscle: smooth",
    )


@pytest.mark.slow
@quick
@given(names=CLASS_LISTS, newline=st.sampled_from(["\n", "\r\n", "\r"]), data=st.data())
def test_name_and_id_lines_in_any_order_give_back_any_names(
    tmp_path: Path, names: list[str], newline: str, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(names))))
    text = newline.join(f"{names[i]},{i}" for i in order)
    assert read_class_map(write(tmp_path, text)) == tuple(names)


@pytest.mark.slow
@quick
@given(text=st.text(max_size=60))
def test_any_text_is_a_class_map_or_a_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "classes.txt"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        names = read_class_map(path)
    except HistobenchError as error:
        assert str(path) in str(error)  # noqa: PT017  (an error is one of two right outcomes)
    else:
        assert names
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("A,0\nB,0\n", 2, "id of line 1"),
        ("A,0\nA,1\n", 2, "already on line 1"),
        ("A\nB\nA\n", 3, "already on line 1"),
        ("A,0\nB,1\nTUM,2a\n", 3, "expected 'Name,ID'"),
        ("0:A\n1:B\nC\n", 3, "expected 'ID:Name'"),
        ("A,0\n,1\nC,2\n", 2, "expected 'Name,ID'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, line: int, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(HistobenchError) as caught:
        read_class_map(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert words in str(caught.value)


def test_ids_have_no_gap(tmp_path: Path) -> None:
    with pytest.raises(HistobenchError, match=r"classes.txt: ids must be consecutive .* 1 is missing"):
        read_class_map(write(tmp_path, "A,0\nB,2\n"))


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    with pytest.raises(HistobenchError, match="does not exist"):
        read_class_map(path)
    path.write_bytes(b"")
    with pytest.raises(HistobenchError, match="is empty"):
        read_class_map(path)
    for encoding in ("latin-1", "utf-16"):
        path.write_bytes("A\nB\nÄ".encode(encoding))
        assert read_class_map(path) == ("A", "B", "Ä")
    path.write_bytes(b"A\n\0\n")
    with pytest.raises(HistobenchError, match=r"classes.txt:2: .* NUL"):
        read_class_map(path)
    with pytest.raises(IsADirectoryError):
        read_class_map(tmp_path)
    with pytest.raises(HistobenchError, match=r"did you mean classes.txt\?"):
        read_class_map(tmp_path / "clases.txt")


def test_a_measurement_is_not_taken_for_classes() -> None:
    draw = np.random.default_rng(0)
    for texts in (
        [f"{value:.3f}" for value in draw.normal(size=200)],  # a score
        [str(value) for value in draw.permutation(2000)[:100]],  # days of survival, one per patient
    ):
        with pytest.raises(
            HistobenchError, match=r"the column 'label' looks continuous: \d+ different numbers"
        ):
            classes_of(texts)
    with pytest.raises(HistobenchError, match="the column 'group_label' looks continuous"):
        classes_of([f"{value / 7:.2f}" for value in range(60)], column="group_label")


def test_numbers_that_are_classes_stay_classes() -> None:
    assert len(classes_of([str(k) for k in range(32)] * 3)) == 32
    assert classes_of(["1.5", "2.5", "1.5"]) == ("1.5", "2.5")
    assert len(classes_of([f"patient {k}" for k in range(50)])) == 50
