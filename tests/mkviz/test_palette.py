"""Colours: stable by name, apart from each other, and an image's indices mean what they say."""

import numpy as np

from mkviz import palette


def test_an_op_keeps_its_colour_whatever_else_is_there():
    alone = palette.op_colours(("attention",))[0]
    assert palette.op_colours(("merge", "zzz", "attention"))[2] == alone == "#E69F00"
    assert palette.op_colours(("zzz", "attention"))[0] == palette.op_colours(("attention", "zzz"))[1]


def test_up_to_24_ops_all_differ():
    ops = (*(f"kernel{i}" for i in range(22)), "qkv", "o_proj")
    assert len(set(palette.op_colours(ops))) == 24
    assert len(palette.op_colours(tuple(f"k{i}" for i in range(200)))) == 200


def test_ink_reads_on_every_colour():
    """At least 4.5:1 between a label and its rectangle, by WCAG's formula."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in palette.COLOURS:
        low, high = sorted((luminance(colour), luminance(palette.ink(colour))))
        assert (high + 0.05) / (low + 0.05) >= 4.5, colour


def test_image_indices():
    grid = np.array([[0, 1, 1, 255, 255]], np.uint8)
    busy = np.array([[1.0, 0.5, 0.1, 0.0, 0.0]])
    wait = np.array([[0.0, 0.2, 0.8, 0.0, 1.0]])
    table, levels = palette.image_palette(["#0072B2", "#E69F00"])
    index = palette.image_index(grid, busy, wait, levels)
    names = [table[i] for i in index[0]]
    assert names[0] == "#0072B2ff"  # all of the pixel: opaque
    assert names[1].startswith("#E69F00") and names[1] != "#E69F00ff"
    assert names[2].startswith(palette.WAIT) and names[4].startswith(palette.WAIT)  # more wait than work
    assert int(names[2][7:], 16) < int(names[4][7:], 16)
    assert index[0, 3] == palette.IDLE and table[palette.IDLE].endswith("00")


def test_many_classes_fit_the_table():
    for classes in (1, 24, 201):
        table, levels = palette.image_palette(["#123456"] * classes)
        assert len(table) == 256 and levels >= 1 and classes * levels <= palette.WAIT_BASE
