"""Captions for training: what people call the nine tissues, in the sentences that they use."""

from __future__ import annotations

import numpy as np

#: Names and short descriptions per class. The first is the class's own short name.
NAMES: dict[str, tuple[str, ...]] = {
    "NORM": (
        "NORM",
        "normal",
        "normal tissue",
        "normal mucosa",
        "normal colon mucosa",
        "healthy mucosa",
        "normal colon",
        "benign colonic mucosa",
        "normal colorectal epithelium",
        "non-neoplastic glands",
        "normal crypts with goblet cells",
        "regular round glands with goblet cells",
        "healthy colon glands in lamina propria",
        "benign glands with basal nuclei",
        "colon crypts",
        "goblet cells",
    ),
    "STR": (
        "STR",
        "stroma",
        "stromal tissue",
        "cancer-associated stroma",
        "tumour stroma",
        "tumor-associated stroma",
        "desmoplastic stroma",
        "fibrous stroma",
        "wavy collagen with spindle cells",
        "connective tissue",
        "collagen and fibroblasts",
        "fibrosis",
        "desmoplasia",
        "fibrous connective tissue with sparse spindle nuclei",
    ),
    "TUM": (
        "TUM",
        "tumor",
        "tumour",
        "tumor epithelium",
        "tumour epithelium",
        "colorectal adenocarcinoma epithelium",
        "colorectal adenocarcinoma",
        "adenocarcinoma",
        "cancer",
        "carcinoma",
        "malignant glands",
        "malignant epithelium",
        "neoplastic epithelium",
        "crowded irregular glands with atypical nuclei",
        "sheets of pleomorphic hyperchromatic nuclei",
        "invasive carcinoma cells",
        "neoplasm",
    ),
    "MUS": (
        "MUS",
        "muscle",
        "smooth muscle",
        "muscular tissue",
        "muscularis propria",
        "smooth muscle bundles",
        "muscle fibres",
        "muscle fibers",
        "muscularis",
        "pink parallel fibres with cigar-shaped nuclei",
        "smooth muscle cells with elongated nuclei",
        "muscle layer",
    ),
    "MUC": (
        "MUC",
        "mucus",
        "mucin",
        "mucosa tissue",  # how the published example prompts call this class
        "extracellular mucin",
        "mucinous material",
        "pools of mucin",
        "mucin lake",
        "pale streaming mucus with few cells",
        "mucoid substance",
        "acellular mucin",
        "mucinous",
    ),
    "LYM": (
        "LYM",
        "lymphocytes",
        "lymphocyte",
        "lymphoid tissue",
        "lymphoid aggregate",
        "dense lymphocytic infiltrate",
        "inflammatory cells",
        "immune cells",
        "lymphoid follicle",
        "small round dark nuclei of lymphocytes",
        "inflammation",
        "lymphocytic infiltration",
        "lymph node",
    ),
    "DEB": (
        "DEB",
        "debris",
        "necrosis",
        "necrotic tissue",
        "necrotic debris",
        "cell debris",
        "cellular debris",
        "tissue debris",
        "amorphous necrotic material",
        "karyorrhexis and nuclear dust",
        "dead cells",
        "granular eosinophilic necrosis with fragments",
        "hemorrhagic debris",
    ),
    "BACK": (
        "BACK",
        "background",
        "empty background",
        "glass",
        "empty slide",
        "no tissue",
        "blank area of the slide",
        "background without tissue",
        "white background",
        "glass slide background",
        "slide background with dust",
        "empty glass",
    ),
    "ADI": (
        "ADI",
        "adipose",
        "adipose tissue",
        "fat",
        "fatty tissue",
        "fat cells",
        "adipocytes",
        "mature adipocytes",
        "adipose cells with thin membranes",
        "large empty fat cells",
        "pericolic fat",
        "subserosal adipose tissue",
    ),
}

TEMPLATES: tuple[str, ...] = (
    "{}",
    "{}.",
    "a photomicrograph showing {}.",
    "a photomicrograph of {}.",
    "an image of {}.",
    "an image showing {}.",
    "an example of {}.",
    "{} is shown.",
    "this is {}.",
    "there is {}.",
    "a histopathological image showing {}.",
    "a histopathology image showing {}",
    "A histopathology image showing {}",
    "a histopathological photograph of {}.",
    "shows {}.",
    "presence of {}.",
    "{} is present.",
    "an H&E stained image of {}.",
    "an H&E stained image showing {}.",
    "an H&E image of {}.",
    "H&E stained section with {}",
    "this is a patch of {} in colorectal tissue",
    "colorectal tissue: {}",
    "This is a pathology image showing {} tissue characteristics",
    "This is a pathology image showing {} tissue characteristics",
    "This is a pathology image showing {}",
    "a pathology tile with {}",
    "microscopic view of {} at 20x",
    "region of interest containing {}",
    "a synthetic tile of {}",
    "the tissue in this image is {}",
    "histology of {}",
    "mostly {}",
)

# Words that say nothing about the tissue; the model learns to look past them and past words it never saw.
_FILLER_TEXT = """
slide section region area sample specimen biopsy field view magnification scanner stained stain colour
patient case image picture photo tile patch colon rectum colorectal large bowel human typical example high
quality blurry dark light pale pink purple good poor left right upper lower with and the of in on from
"""
_FILLERS = _FILLER_TEXT.split()


def make_caption(class_name: str, rng: np.random.Generator) -> str:
    """A random caption of a tile: a name in a template, sometimes with words that do not matter."""
    names = NAMES[class_name]
    caption = TEMPLATES[int(rng.integers(len(TEMPLATES)))].format(names[int(rng.integers(len(names)))])
    if rng.random() < 0.35:
        words = caption.split()
        for _ in range(int(rng.integers(1, 5))):
            word = _FILLERS[int(rng.integers(len(_FILLERS)))] if rng.random() < 0.6 else _nonsense(rng)
            words.insert(int(rng.integers(len(words) + 1)), word)
        caption = " ".join(words)
    return caption.upper() if rng.random() < 0.03 else caption


def _nonsense(rng: np.random.Generator) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return "".join(letters[i] for i in rng.integers(26, size=int(rng.integers(3, 10))))
