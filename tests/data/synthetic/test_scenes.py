"""Generated scenes: held-out combinations, and images that agree with their captions."""

import numpy as np

from harken.data.rng import rng_for
from harken.data.synthetic import scenes

AREAS = {"circle": 3.14, "square": 4, "triangle": 2, "cross": 1.75, "diamond": 2, "ring": 2.19}  # for half width 1


def kinds(scene) -> frozenset:
    return frozenset((scene.first.kind, scene.second.kind))


def test_no_training_scene_has_a_held_out_combination_and_every_test_scene_has_one():
    new_kinds, pairs = scenes.held_out()
    train = {kinds(scene) for scene in scenes.scenes("train", 3000)}
    trained_kinds = {kind for pair in train for kind in pair}
    assert not trained_kinds & new_kinds
    assert not train & pairs
    assert trained_kinds | new_kinds == {(color, shape) for color in scenes.COLORS for shape in scenes.SHAPES}
    test = list(scenes.scenes("test", 400))
    assert [scene.new for scene in test].count("thing") == 200
    for scene in test:
        assert bool(kinds(scene) & new_kinds) if scene.new == "thing" else kinds(scene) in pairs


def test_an_image_shows_what_its_captions_say():
    """The pixels of each color are where the relation says, and their number fits size and shape."""
    for n, scene in enumerate(scenes.scenes("train", 200)):
        if scene.first.color == scene.second.color:
            continue  # the two shapes cannot be separated by color
        image, centers = scenes.render_scene(scene, rng_for(7, n)).astype(int), []
        background = np.median(image.reshape(-1, 3), 0)
        for item, second in ((scene.first, scene.second), (scene.second, scene.first)):
            distance, background_distance, second_distance = (
                np.abs(image - np.array(color)).sum(2)
                for color in (scenes.COLORS[item.color], background, scenes.COLORS[second.color])
            )
            y, x = np.nonzero((distance < background_distance) & (distance < second_distance))
            centers.append((y.mean(), x.mean()))
            area = AREAS[item.shape] * scenes.SIZES[item.size] ** 2
            assert 0.7 * area < len(y) < 1.4 * area
        down, right = scenes.RELATIONS[scene.relation]
        step = (centers[0][0] - centers[1][0]) * down + (centers[0][1] - centers[1][1]) * right
        assert step > 4


def test_the_captions_of_a_scene_agree():
    scene = next(scenes.scenes("train", 1))
    forward, backward = scene.captions()
    assert forward == f"{scene.first} {scene.relation} {scene.second}"
    assert backward == f"{scene.second} {scenes.INVERSE[scene.relation]} {scene.first}"
