"""Task folders of Patho-Bench, HEST-Benchmark and plismbench, with their recipes by plain scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from histobench.api.benchmark import open_results
from histobench.cli.main import main
from histobench.report.table import shown_metrics
from histobench.roi.data.image_ref import locate
from histobench.roi.data.source import load_dataset
from histobench.roi.protocols.lab_recipes import elastic_net_cox
from histobench.roi.protocols.target_probes import ProbeRows
from histobench.roi.results.reader import split_runs

pytestmark = pytest.mark.slow

DIM = 10


def patho_bench(
    root: Path, *, task: str = "grade", folds: int = 3, cases: int = 30, sample_col: str = "case_id"
) -> tuple[Path, Path, pd.DataFrame]:
    """A task folder, and patch features as TRIDENT writes them; some cases have two slides."""
    draw = np.random.default_rng(5)
    folder, features = root / "cohort" / task, root / "features_uni_v1"
    folder.mkdir(parents=True)
    features.mkdir(exist_ok=True)
    survival = task == "OS"
    assigned = draw.permutation(cases)
    rows = []
    for number in range(cases):
        label = number % 3
        days, event = int(np.ceil(draw.exponential(400 / (1 + label)))), int(draw.random() < 0.7)
        words = ["test" if assigned[number] % 3 == fold % 3 else "train" for fold in range(folds)]
        words[0] = "val" if (words[0], number % 7) == ("train", 4) else words[0]
        for slide in range(1 + number % 2):
            row: dict[str, Any] = {"case_id": f"{number:04d}", "slide_id": f"{number:04d}-{slide}.x"}
            row[task] = label + 4 * event if survival else label
            row |= {"OS_days": days, "OS_event": event} if survival else {"site": f"H{number % 2}"}
            rows.append(row | {f"fold_{fold}": word for fold, word in enumerate(words)})
            tiles = int(draw.integers(3, 9))
            values = (draw.normal(size=(tiles, DIM)) + 0.4 * label).astype(np.float32)
            with h5py.File(features / f"{row['slide_id']}.h5", "w") as file:
                file.create_dataset("features", data=values).attrs["encoder"] = "uni_v1"
                places = np.stack([256 * np.arange(tiles), np.zeros(tiles)], axis=1).astype(np.int64)
                file.create_dataset("coords", data=places).attrs["patch_size_level0"] = 256
    table = pd.DataFrame(rows)
    table.to_csv(folder / "k=all.tsv", sep="\t", index=False)
    config: dict[str, Any] = {"datasets": ["cohort"], "task_col": task, "sample_col": sample_col}
    config |= {"extra_cols": ["OS_event", "OS_days"] if survival else [], "num_samples": cases}
    config |= {"task_type": "survival" if survival else "classification"}
    config["metrics"] = ["cindex"] if survival else ["macro-ovr-auc"]
    config["label_dict"] = {label: f"g{label}" for label in range(8 if survival else 3)}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder, features, table


def pooled(features: Path, table: pd.DataFrame, pool: str, column: str = "case_id") -> dict[str, np.ndarray]:
    """The vector of each sample, by NumPy."""
    found = {}
    for sample, rows in table.groupby(column):
        slides = [h5py.File(features / f"{slide}.h5")["features"][:] for slide in rows["slide_id"]]
        means = [np.concatenate(slides).mean(0)] if pool == "tiles" else [slide.mean(0) for slide in slides]
        found[str(sample)] = np.mean(means, axis=0)
    return found


def run(folder: Path, features: Path, *flags: str) -> int:
    place = ["--features", f"uni_v1={features}", "--results", str(folder.parent / "r"), "--device", "cpu"]
    return main(["run", "--data", str(folder), *place, *flags])


@pytest.mark.parametrize("task", ["grade", "OS"])
def test_data_check_reads_a_task_folder_as_run_does(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _, table = patho_bench(tmp_path, task=task)
    assert main(["data", "check", str(folder)]) == 0
    assert f"{len(table)} images, 30 groups" in capsys.readouterr().out
    table.loc[0, "fold_0"] = "tset"
    table.to_csv(folder / "k=all.tsv", sep="\t", index=False)
    assert main(["data", "check", str(folder)]) == 2
    assert "fold 'tset' is not train, val or test" in capsys.readouterr().out


def test_data_check_of_hest_and_plism_says_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "check", str(hest(tmp_path, spots=20)[0])]) == 0
    shown = capsys.readouterr().out
    assert "regression (5 columns)" in shown
    assert "class of one group" not in shown
    for slide in ("GMH_S60_to_GMH_S60", "GMH_AT2_to_GMH_S60"):
        (tmp_path / "plism" / slide).mkdir(parents=True)
        np.save(tmp_path / "plism" / slide / "features.npy", np.zeros((4, 9), np.float32))
    assert main(["data", "check", str(tmp_path / "plism")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "all images are of one class (tissue); only Robustness can run" in shown
    assert "no groups" not in shown


def published(folder: Path, preset: str = "patho-bench") -> list[dict[str, Any]]:
    path = folder.parent / "r" / "comparison" / preset / "published_summary.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize(
    ("pool", "column", "flags"),
    [
        ("slides", "case_id", []),
        ("tiles", "case_id", ["--pool", "tiles", "--cost", "1", "--class-weight", "none"]),
        ("slides", "slide_id", ["--cost", "adaptive"]),
    ],
)
def test_linear_probe_of_patho_bench(
    pool: str, column: str, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, features, table = patho_bench(tmp_path, sample_col=column)
    assert run(folder, features, *flags) == 0
    shown = " ".join(capsys.readouterr().out.split())
    (entry,) = published(folder)
    vectors = pooled(features, table, pool, column)
    samples = table.drop_duplicates(column)
    cost, weight = (1.0, None) if "1" in flags else (0.5, "balanced")
    cost = DIM * 3 / 100 if "adaptive" in flags else cost
    auc, bacc = [], []
    for fold in range(3):
        parts = {word: samples[samples[f"fold_{fold}"] == word] for word in ("train", "test")}
        x = {word: np.stack([vectors[name] for name in part[column]]) for word, part in parts.items()}
        model = LogisticRegression(C=cost, max_iter=10_000, random_state=0, class_weight=weight)
        model.fit(x["train"].astype(np.float32), parts["train"]["grade"])
        said = model.predict_proba(x["test"].astype(np.float32))
        auc.append(roc_auc_score(parts["test"]["grade"], said, multi_class="ovr"))
        bacc.append(balanced_accuracy_score(parts["test"]["grade"], said.argmax(1)))
    for name, values in {"macro-ovr-auc": auc, "bacc": bacc}.items():
        found = entry["metrics"][name]
        assert found["mean"] == pytest.approx(np.mean(values), abs=2e-6)
        assert found["se"] == pytest.approx(np.std(values) / np.sqrt(3), abs=2e-6)
        assert f"{name} {np.mean(values):.3f} ± {np.std(values) / np.sqrt(3):.3f}" in shown
    held_out = {
        run.info["split"]["repeat"]: run.info.get("num_val") for run in split_runs(folder.parent / "r")
    }
    assert held_out == {1: (samples["fold_0"] == "val").sum(), 2: None, 3: None}
    assert "mean and standard error over 3 folds" in shown
    assert "splits given" in shown  # and our own interval


def test_one_fold_is_bootstrapped(tmp_path: Path) -> None:
    folder, features, _ = patho_bench(tmp_path, folds=1)
    assert run(folder, features) == 0
    found = published(folder)[0]["metrics"]["bacc"]
    assert found["lower"] <= found["mean"] <= found["upper"]
    assert abs(found["mean"] - found["value"]) < 0.1
    assert "bootstrap samples of 10 test samples" in published(folder)[0]["how"]


def test_one_test_sample_per_fold_is_pooled(tmp_path: Path) -> None:
    folder, features, table = patho_bench(tmp_path, folds=1, cases=12)
    cases = sorted(set(table["case_id"]))
    for fold, case in enumerate(cases):
        table[f"fold_{fold}"] = ["test" if each == case else "train" for each in table["case_id"]]
    table.to_csv(folder / "k=all.tsv", sep="\t", index=False)
    assert run(folder, features) == 0
    (entry,) = published(folder)
    assert entry["folds"] == 12
    assert "bootstrap samples of 12 test samples" in entry["how"]


#: Risks of the first test patients by scikit-survival 0.28 (`CoxnetSurvivalAnalysis` with
#: alphas=[0.07], l1_ratio=0.5 and max_iter=100000; for l1_ratio 0 `CoxPHSurvivalAnalysis(0.07)`).
SCIKIT_SURVIVAL = {
    0.5: [-0.785843591504, -1.2103214402, 0.019971712721, -1.0159776223, 0.558655614342, -1.31855474051],
    0.9: [-0.607195154708, -0.743409607096, 0.03276926610, -0.853203492228, 0.374875056163, -0.853099985407],
    0.0: [-3.23211388906, -2.8368262824, -1.32046847708, -0.331575040012, 2.46651397581, -3.5122618915],
}


def cox_data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(11)
    x = draw.normal(size=(120, 40)).astype(np.float32)
    time = np.ceil(draw.exponential(300 * np.exp(-x[:, 0] / 2)) / 20)  # with ties
    return x, time, (draw.random(120) < 0.6).astype(float)


@pytest.mark.parametrize("l1_ratio", SCIKIT_SURVIVAL)
def test_cox_model_agrees_with_scikit_survival(l1_ratio: float) -> None:
    x, time, event = cox_data()
    truth = np.stack([time, event], axis=1)
    train, test = ProbeRows(torch.from_numpy(x[:80]), truth[:80]), torch.from_numpy(x[80:])
    found = elastic_net_cox(train, test, alpha=0.07, l1_ratio=l1_ratio).predicted[:, 0]
    np.testing.assert_allclose(
        np.diff(found[:6]), np.diff(SCIKIT_SURVIVAL[l1_ratio]), atol=1e-9 if l1_ratio else 1e-5
    )


def test_survival_task_of_patho_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, features, table = patho_bench(tmp_path, task="OS", cases=45)
    assert run(folder, features) == 0
    (entry,) = published(folder)
    vectors = pooled(features, table, "slides")
    samples = table.drop_duplicates("case_id")
    values = []
    for fold in range(3):
        parts = {word: samples[samples[f"fold_{fold}"] == word] for word in ("train", "test")}
        x = {word: np.stack([vectors[name] for name in part["case_id"]]) for word, part in parts.items()}
        truth = parts["train"][["OS_days", "OS_event"]].to_numpy(dtype=np.float64)
        train = ProbeRows(torch.from_numpy(x["train"].astype(np.float32)), truth)
        test = torch.from_numpy(x["test"].astype(np.float32))
        risk = elastic_net_cox(train, test, alpha=0.07, l1_ratio=0.5).predicted[:, 0]
        values.append(concordance(risk, parts["test"]["OS_days"], parts["test"]["OS_event"]))
    assert entry["metrics"]["cindex"]["mean"] == pytest.approx(np.mean(values), abs=1e-9)
    assert entry["metrics"]["cindex"]["se"] == pytest.approx(np.std(values) / np.sqrt(3), abs=1e-9)
    assert "cindex" in capsys.readouterr().out


def concordance(risk: np.ndarray, time: pd.Series, event: pd.Series) -> float:
    """Harrell's C, pair by pair."""
    t, e = time.to_numpy(), event.to_numpy()
    right = total = 0.0
    for i in np.flatnonzero(e):
        for j in range(len(t)):
            if t[j] > t[i] or (t[j] == t[i] and not e[j]):
                total += 1
                right += 0.5 if abs(risk[i] - risk[j]) <= 1e-8 else float(risk[i] > risk[j])
    return right / total


def test_vectors_that_patho_bench_pooled_are_read(tmp_path: Path) -> None:
    folder, features, table = patho_bench(tmp_path)
    place = tmp_path / "by_case_id"
    place.mkdir()
    for name, vector in pooled(features, table, "slides").items():
        with h5py.File(place / f"{name}.h5", "w") as file:
            file.create_dataset("features", data=vector[None].astype(np.float32))
    assert run(folder, features) == 0
    first = published(folder)
    assert run(folder, place) == 0
    again = [entry for entry in published(folder) if entry["encoder"] == first[0]["encoder"]]
    assert again == first


def hest(root: Path, *, spots: int = 110, dim: int = 300) -> tuple[Path, Path]:
    """A task folder of HEST-Benchmark with three sections, and embeddings as its benchmark writes them."""
    anndata = pytest.importorskip("anndata")
    from scipy.sparse import csr_matrix

    draw = np.random.default_rng(2)
    folder, features = root / "IDC", root / "ST_data_emb" / "IDC" / "uni_v1"
    for below in ("adata", "patches", "splits"):
        (folder / below).mkdir(parents=True)
    features.mkdir(parents=True)
    genes = [f"GENE{number}" for number in range(5)]
    mixing = draw.normal(size=(dim, 5)) / 15
    samples = ["TENX1", "TENX2", "NCBI3"]
    for sample in samples:
        barcodes = [f"{row:03d}x{row}" for row in range(spots)]
        x = draw.normal(size=(spots, dim)).astype(np.float32)
        counts = draw.poisson(np.exp(1 + x @ mixing)).astype(np.float32)
        order = draw.permutation(spots)  # the expression is matched by barcode
        table = anndata.AnnData(
            csr_matrix(
                np.column_stack([draw.poisson(3, size=spots), counts[:, ::-1]])[order].astype(np.float32)
            ),
            obs=pd.DataFrame(index=[barcodes[row] for row in order]),
            var=pd.DataFrame(index=["OTHER", *genes[::-1]]),
        )
        table.write_h5ad(folder / "adata" / f"{sample}.h5ad")
        names = np.array(barcodes, dtype="S")[:, None]
        with h5py.File(folder / "patches" / f"{sample}.h5", "w") as file:
            pixels = draw.integers(0, 255, size=(spots, 8, 8, 3)).astype(np.uint8)
            file.create_dataset("img", data=pixels, maxshape=(None, 8, 8, 3), chunks=(1, 8, 8, 3))
            file.create_dataset("coords", data=np.zeros((spots, 2), np.int64))
            file.create_dataset("barcode", data=names)
        with h5py.File(features / f"{sample}.h5", "w") as file:
            file.create_dataset("embeddings", data=x)
            file.create_dataset("barcodes", data=names)
            file.create_dataset("coords", data=np.zeros((spots, 2), np.int64))
    for fold, held_out in enumerate(samples):
        for word in ("train", "test"):
            rows = [name for name in samples if (name == held_out) == (word == "test")]
            columns = {"sample_id": rows, "patches_path": [f"patches/{name}.h5" for name in rows]}
            columns["expr_path"] = [f"adata/{name}.h5ad" for name in rows]
            pd.DataFrame(columns).to_csv(folder / "splits" / f"{word}_{fold}.csv", index=False)
    (folder / "var_50genes.json").write_text(json.dumps({"genes": genes}))
    return folder, features


def test_hest_recipe_over_its_folds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from scipy.stats import pearsonr
    from sklearn.decomposition import PCA
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    anndata = pytest.importorskip("anndata")
    folder, features = hest(tmp_path, spots=200)
    assert run(folder, features) == 0
    (entry,) = published(folder, "hest")
    genes = json.loads((folder / "var_50genes.json").read_text())["genes"]
    x, y = {}, {}
    for file in features.glob("*.h5"):
        with h5py.File(file) as box:
            x[file.stem] = box["embeddings"][:]
            barcodes = box["barcodes"][:].ravel().astype(str).tolist()
        counts = anndata.read_h5ad(folder / "adata" / f"{file.stem}.h5ad")[barcodes][:, genes].X
        y[file.stem] = np.log1p(counts.toarray().astype(np.float64))
    values = []
    for held_out in ("TENX1", "TENX2", "NCBI3"):
        train = [name for name in x if name != held_out]
        scaler = StandardScaler().fit(np.concatenate([x[name] for name in train]))
        pca = PCA(256, random_state=1)
        rows = pca.fit_transform(scaler.transform(np.concatenate([x[name] for name in train])))
        model = Ridge(
            alpha=100 / (256 * 5), solver="lsqr", fit_intercept=False, max_iter=1000, random_state=1
        )
        model.fit(rows.astype(np.float32), np.concatenate([y[name] for name in train]))
        said = model.predict(pca.transform(scaler.transform(x[held_out])).astype(np.float32))
        values.append(np.mean([pearsonr(y[held_out][:, k], said[:, k])[0] for k in range(5)]))
    assert entry["metrics"]["pearson_mean"]["mean"] == pytest.approx(np.mean(values), abs=1e-5)
    assert entry["metrics"]["pearson_mean"]["std"] == pytest.approx(np.std(values), abs=1e-5)
    assert "mean and standard deviation over 3 folds" in capsys.readouterr().out
    results = folder.parent / "r"
    assert main(["compare", str(results)]) == 0  # the R2 of predictions without an intercept says nothing
    assert "Regression tiles, pearson (preset hest)" in " ".join(capsys.readouterr().out.split())
    bench = open_results(results)
    assert "pearson" in str([axes.get_xlabel().lower() for axes in bench.plot().axes])
    assert shown_metrics("regression", "hest")[0] == "pearson"
    assert shown_metrics("regression", "uni")[0] == "r2"
    (complete,) = (folder.parent / "r" / "IDC" / "uni_v1@elsewhere" / "hest" / "Regression").glob(
        "*complete*"
    )
    assert set(json.loads(complete.read_text())["metrics"]["per_class"]) == set(genes)


def test_hest_with_few_rows_says_how_many_a_fold_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, features = hest(tmp_path, spots=20)
    assert run(folder, features) == 2
    shown = capsys.readouterr()
    words = "needs 256 training rows and 256 dimensions in every fold (PCA); this one has 40 rows of 300"
    assert words in " ".join((shown.out + shown.err).split())


def test_patches_of_hest_are_images_for_any_encoder(tmp_path: Path) -> None:
    folder, _ = hest(tmp_path, spots=20)
    dataset = load_dataset(folder)
    image = dataset.splits["test"][3]
    with h5py.File(folder / "patches" / "TENX1.h5") as file:
        expected = file["img"][3].tobytes()
    assert locate(image.path).read().endswith(expected)
    assert image.name == "TENX1_003x3"


def test_measures_of_plismbench_for_its_own_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(4)
    folder = tmp_path / "H0-mini"
    places = np.array([[0, 224 * k, 112] for k in range(30)], dtype=np.float32)
    tissue = draw.normal(size=(30, 16))
    rows = {}
    for slide in ("GMH_S60", "GMH_AT2", "HR_S60"):
        rows[slide] = (tissue + 0.8 * draw.normal(size=(30, 16))).astype(np.float32)
        place = folder / f"{slide}_to_GMH_S60.tif"
        place.mkdir(parents=True)
        np.save(place / "features.npy", np.concatenate([places, rows[slide]], axis=1))
    assert run(folder, folder) == 0
    shown = capsys.readouterr().out
    (file,) = (tmp_path / "r").rglob("*pair*.json")
    measures = json.loads(file.read_text())["measures"]
    unit = {name: values / np.linalg.norm(values, axis=1, keepdims=True) for name, values in rows.items()}
    pairs = [("GMH_AT2", "GMH_S60"), ("GMH_AT2", "HR_S60"), ("GMH_S60", "HR_S60")]
    cosine = [float((unit[one] * unit[two]).sum(1).mean()) for one, two in pairs]
    assert measures["pair_cosine"]["value"] == pytest.approx(np.median(cosine), abs=1e-6)
    top = []
    for one, two in pairs:
        both = np.concatenate([unit[one], unit[two]])
        near = both @ both.T
        np.fill_diagonal(near, -np.inf)
        order = np.argsort(-near, axis=1)[:, :5]
        top.append(np.mean([(k + 30) % 60 in order[k] for k in range(60)]))
    assert measures["pair_top5"]["value"] == pytest.approx(np.median(top), abs=1e-9)
    assert "pair" in shown


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda at: (at / "config.yaml").unlink(), "config.yaml does not exist"),
        (lambda at: replaced(at / "config.yaml", "task_col: grade", ""), "(KeyError: 'task_col')"),
        (lambda at: (at / "config.yaml").write_text("a: [b"), "not valid YAML"),
        (lambda at: replaced(at / "k=all.tsv", "slide_id", "slide"), "form of patho-bench (KeyError"),
        (lambda at: replaced(at / "k=all.tsv", "\ttest", "\ttset"), "fold 'tset' is not train, val or test"),
        (lambda at: replaced(at / "k=all.tsv", "0001-1.x\t1", "0001-1.x\t2"), "0001 has another label"),
        (lambda at: replaced(at / "k=all.tsv", "0000-0.x\t0", "0000-0.x\tg0"), "'g0' is not in label_dict"),
        (lambda at: replaced(at / "k=all.tsv", "0000-0.x", "0000-9.x"), "not in"),
    ],
)
def test_damaged_tasks_of_patho_bench_are_one_line(
    damage: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, features, _ = patho_bench(tmp_path)
    damage(folder)
    assert run(folder, features) == 2
    shown = capsys.readouterr()
    assert words in " ".join((shown.out + shown.err).split())
    assert "Traceback" not in shown.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--split", "0.8/0.2"], "leave out --split"),
        (["--target", "survival"], "the target of this folder is class, not survival"),
        (["--cost", "0"], "expected adaptive or a number above 0"),
        (["--l1-ratio", "1.5"], "at most 1"),
        (["--models", "efficientnet-lite0"], "there are no images for efficientnet-lite0"),
        (["--pool", "cases"], "'cases' is unknown; known: slides, tiles"),
    ],
)
def test_options_that_do_not_fit_a_task_folder(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, features, _ = patho_bench(tmp_path)
    try:
        code = run(folder, features, *flags)
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 1
    shown = capsys.readouterr()
    assert code == 2
    assert words in " ".join((shown.out + shown.err).split())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda at: (at / "var_50genes.json").unlink(), "var_50genes.json does not exist"),
        (lambda at: (at / "var_50genes.json").write_text('["A"]'), "published form of hest (TypeError"),
        (lambda at: (at / "var_50genes.json").write_text('{"genes": ["B"]}'), "(KeyError: 'B')"),
        (lambda at: (at / "splits" / "train_2.csv").unlink(), "train_2.csv does not exist"),
        (lambda at: replaced(at / "splits" / "train_1.csv", "NCBI3,", "TENX2,"), "once in every fold"),
        (lambda at: (at / "adata" / "TENX2.h5ad").unlink(), "cannot be read as HDF5: it does not exist"),
        (lambda at: (at / "patches" / "TENX2.h5").write_text("x"), "cannot be read as HDF5"),
    ],
)
def test_damaged_tasks_of_hest_are_one_line(
    damage: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, features = hest(tmp_path, spots=5, dim=8)
    damage(folder)
    assert run(folder, features) == 2
    shown = capsys.readouterr()
    assert words in " ".join((shown.out + shown.err).split())
    assert "Traceback" not in shown.err
