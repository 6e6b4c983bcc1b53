"""What the columns of a table of images may be called."""

from __future__ import annotations

#: In a CSV with a row per image; of several, the first that is there. Case does not matter.
CSV_COLUMNS = {
    "image_path": ("image_path", "path", "file", "filename", "image"),
    "label": ("label",),
    "split": ("split",),
    "group": ("group",),
}
#: In a DataFrame, where nobody had a format in mind; a patient comes before a slide.
FRAME_COLUMNS = {
    "image_path": ("image_path", "path", "paths", "file", "filename", "image"),
    "label": ("label", "labels", "class"),
    "split": ("split", "splits"),
    "group": ("group", "groups", "patient", "slide"),
}
