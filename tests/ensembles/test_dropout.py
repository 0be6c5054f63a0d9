import torch

from possym.ensembles.dropout import GOLDEN, keep_mask, keys_by_step


def plain(key, stream, place, probability):
    """The same hash in whole numbers without bounds."""

    def mixed(x):
        x = ((x ^ (x >> 16)) * 0x7FEB352D) % 2**32
        x = ((x ^ (x >> 15)) * 0x846CA68B) % 2**32
        return x ^ (x >> 16)

    first, second = (mixed((part + stream * GOLDEN) % 2**32) for part in key)
    return (mixed((mixed(place ^ first) + second) % 2**32) & 0xFFFFFF) >= round(probability * 2**24)


def random_keys(members, seed=0):
    return keys_by_step([torch.Generator().manual_seed(seed + m) for m in range(members)], 1)[0]


def test_masks_are_the_hash_in_plain_whole_numbers():
    keys = torch.tensor([[-5, 2**31 - 1], [7, -(2**31)]], dtype=torch.int32)
    for stream in (0, 1, 40):
        mask = keep_mask(keys, stream, (5, 60), 0.3)
        expected = [[plain(key, stream, place, 0.3) for place in range(300)] for key in keys.tolist()]
        assert mask.flatten(1).tolist() == expected


def test_values_are_dropped_at_the_rate_asked_for_and_independently():
    masks = torch.stack(
        [keep_mask(random_keys(4, seed), stream, (64, 128), 0.1) for seed in (0, 10) for stream in (0, 1)]
    )
    dropped = (~masks).flatten(0, 1).flatten(1).double()  # 16 masks of 8,192 values
    assert (dropped.mean(1) - 0.1).abs().max() < 4 * (0.09 / 8192) ** 0.5
    correlation = torch.corrcoef(dropped) - torch.eye(16, dtype=torch.float64)
    assert correlation.abs().max() < 4.5 / 8192**0.5
    shifted = [(dropped[:, lag:] * dropped[:, :-lag]).mean() for lag in (1, 2, 4, 64, 128, 4096)]
    assert max(abs(value - 0.01) for value in shifted) < 4 * (0.0099 / (16 * 4096)) ** 0.5


def test_a_members_mask_depends_on_its_own_key_and_the_stream_alone():
    keys = random_keys(3)
    together, alone = keep_mask(keys, 2, (10, 10), 0.5), keep_mask(keys[1:2], 2, (10, 10), 0.5)
    assert torch.equal(together[1:2], alone)
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(keep_mask(keys, 3, (10, 10), 0.5), together)
