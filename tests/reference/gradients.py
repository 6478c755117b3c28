"""FedAvg, Ditto and FedALA written out slowly: one sample at a time, in float64.

Nothing here knows of fedgram, except where its randomness comes from. A model is a list of layers
(matrices); with two of them a ReLU and a constant stand in between. A client is a name with its
samples: pairs of a feature vector and a class.
"""

import hashlib

import numpy as np


def name_number(name):
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def entropy(seed, name, ask):
    """Where a client's randomness of one ask comes from."""
    return np.random.SeedSequence([seed, name_number(name), ask])


def start(width, hidden, classes):
    """The public start: a random hidden layer, a head of zeros."""
    if not hidden:
        return [np.zeros((width, classes))]
    rng = np.random.Generator(np.random.Philox(0))
    below = rng.standard_normal(width * hidden).reshape(width, hidden) * (2 / width) ** 0.5
    return [below, np.zeros((hidden + 1, classes))]


def forward(model, x):
    """What the head sees of one sample, and the chances of the classes."""
    seen = x
    if len(model) == 2:
        seen = [
            max(0.0, sum(x[i] * below for i, below in enumerate(column))) for column in model[0].T
        ]
        seen = np.array([*seen, 1.0])
    scores = [sum(seen[i] * weight for i, weight in enumerate(column)) for column in model[-1].T]
    powers = [np.exp(score - max(scores)) for score in scores]
    return seen, [power / sum(powers) for power in powers]


def mean_loss(model, batch):
    return sum(-np.log(forward(model, x)[1][y]) for x, y in batch) / len(batch)


def mean_gradient(model, batch):
    slopes = [np.zeros_like(layer) for layer in model]
    for x, y in batch:
        seen, chances = forward(model, x)
        errors = [chance - (c == y) for c, chance in enumerate(chances)]
        for i, value in enumerate(seen):
            for c, error in enumerate(errors):
                slopes[-1][i, c] += value * error / len(batch)
        if len(model) == 2:
            for h in range(model[0].shape[1]):
                back = sum(model[1][h, c] * error for c, error in enumerate(errors))
                for i, value in enumerate(x):
                    slopes[0][i, h] += value * back * (seen[h] > 0) / len(batch)
    return slopes


def shuffled(samples, size, rng):
    """One epoch of batches."""
    order = rng.permutation(len(samples))
    return [[samples[i] for i in order[at : at + size]] for at in range(0, len(order), size)]


def descended(model, samples, rng, *, rate, epochs, batch, towards=None, strength=0.0):
    model = [layer.copy() for layer in model]
    for _ in range(epochs):
        for some in shuffled(samples, batch, rng):
            slopes = mean_gradient(model, some)
            for k, slope in enumerate(slopes):
                pull = strength * (model[k] - towards[k]) if towards else 0.0
                model[k] = model[k] - rate * (slope + pull)
    return model


def averaged(models, sizes):
    total = sum(sizes)
    return [
        sum(n / total * layer for n, layer in zip(sizes, layers, strict=True))
        for layers in zip(*models, strict=True)
    ]


def fedavg(clients, first, *, rounds, seed, **settings):
    """The shared model after each round; the opening was ask number one."""
    shared = first
    for turn in range(1, rounds + 1):
        models = [
            descended(
                shared, samples, np.random.default_rng(entropy(seed, name, turn + 1)), **settings
            )
            for name, samples in clients.items()
        ]
        shared = averaged(models, [len(samples) for samples in clients.values()])
        yield shared


def ditto(clients, first, *, rounds, seed, strength, personal_epochs, **settings):
    """The shared model and everybody's personal model after the last round."""
    personal = dict.fromkeys(clients, first)
    received = [first, *fedavg(clients, first, rounds=rounds, seed=seed, **settings)]
    for turn in range(1, rounds + 1):
        for name, samples in clients.items():
            (apart,) = entropy(seed, name, turn + 1).spawn(1)
            personal[name] = descended(
                personal[name],
                samples,
                np.random.default_rng(apart),
                **{**settings, "epochs": personal_epochs},
                towards=received[turn - 1],
                strength=strength,
            )
    return received[-1], personal


class Mixer:
    """One client of FedALA: its last model, and a weight for each entry of the head."""

    def __init__(self, name, samples, settings):
        self.name, self.samples = name, samples
        self.rate, self.share, self.settled, self.batch = settings
        self.own = self.weights = None

    def mixed(self, shared, finished):
        """The start of local training with the weights that it was mixed with."""
        if self.own is None:
            return shared, None
        head, own = shared[-1], self.own[-1]
        weights = np.ones_like(head) if self.weights is None else self.weights.copy()
        rng = np.random.default_rng([name_number(self.name), 0, finished])
        some = max(1, round(self.share * len(self.samples)))
        chosen = [self.samples[i] for i in rng.permutation(len(self.samples))[:some]]
        mixed, losses = own + weights * (head - own), []
        while True:
            for part in shuffled(chosen, self.batch, rng):
                slope = mean_gradient([*shared[:-1], mixed], part)[-1]
                weights = np.clip(weights - self.rate * slope * (head - own), 0.0, 1.0)
                mixed = own + weights * (head - own)
            losses.append(mean_loss([*shared[:-1], mixed], part))
            if self.weights is not None:
                break
            if (len(losses) > 10 and np.std(losses[-10:]) < self.settled) or len(losses) == 100:
                break
        return [*shared[:-1], mixed], weights


def fedala(clients, first, *, rounds, seed, mixing, **settings):
    """The shared model and everybody's personal model after the last round."""
    shared = first
    everybody = [Mixer(name, samples, mixing) for name, samples in clients.items()]
    for turn in range(1, rounds + 1):
        for one in everybody:
            begin, weights = one.mixed(shared, turn - 1)
            rng = np.random.default_rng(entropy(seed, one.name, turn + 1))
            one.own = descended(begin, one.samples, rng, **settings)
            one.weights = weights
        shared = averaged([one.own for one in everybody], [len(one.samples) for one in everybody])
    return shared, {one.name: one.mixed(shared, rounds)[0] for one in everybody}
