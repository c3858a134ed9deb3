"""Point clouds: reproducible, on the surface of their solid, centered and scaled."""

import numpy as np

from harken.data.synthetic.clouds import N_POINTS, SOLIDS, clouds, rows


def test_clouds_depend_on_the_seed_alone() -> None:
    first, repeated, different = (list(clouds(5, seed)) for seed in (0, 0, 1))
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(first, repeated, strict=True))
    assert not any(np.array_equal(a[1], b[1]) for a, b in zip(first, different, strict=True))


def test_every_solid_occurs_and_clouds_are_centered_with_unit_variance() -> None:
    generated = list(clouds(400))
    assert {solid for *_, solid in generated} == {*SOLIDS}
    for _, points, _ in generated:
        assert points.shape == (N_POINTS, 3)
        assert abs(points.mean()) < 0.02
        assert abs(points.std() - 1) < 0.03


def test_points_of_a_sphere_have_equal_distance_from_the_center_and_those_of_a_cross_do_not() -> None:
    radius_std: dict[str, list[float]] = {solid: [] for solid in SOLIDS}
    for name in SOLIDS:
        for seed in range(20):
            radius_std[name].append(float(np.linalg.norm(SOLIDS[name](np.random.default_rng(seed)), axis=1).std()))
    assert max(radius_std["sphere"]) < 1e-9
    assert min(radius_std["cross"]) > 0.1


def test_a_row_has_the_name_a_point_and_the_solid_of_its_cloud() -> None:
    table = list(rows(3))
    assert len(table) == 3 * N_POINTS
    assert len({(name, solid) for name, *_, solid in table}) == 3
    name, points, solid = next(clouds(1))
    assert table[0] == (name, *(f"{x:.3f}" for x in points[0]), solid)
