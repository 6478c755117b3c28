"""FedZO, pFedZO and BAFFLE written out slowly, from losses of one sample at a time.

Models and clients are those of the slow gradient methods beside this file.
"""

import math

import numpy as np

from .gradients import averaged, entropy, mean_loss, shuffled


def flat(model):
    return np.concatenate([layer.reshape(-1) for layer in model])


def like(model, vector):
    """Return a vector as the layers of a model."""
    layers, at = [], 0
    for layer in model:
        layers.append(vector[at : at + layer.size].reshape(layer.shape))
        at += layer.size
    return layers


def estimate(model, batch, rng, *, directions, smoothing):
    """FedZO's estimated gradient: n / (k h) times the sum of (L(w + h u) - L(w)) u."""
    here, size = flat(model), sum(layer.size for layer in model)
    total = np.zeros(size)
    for _ in range(directions):
        u = rng.standard_normal(size)
        u /= math.sqrt(sum(entry**2 for entry in u))
        difference = mean_loss(like(model, here + smoothing * u), batch) - mean_loss(model, batch)
        total += difference * u
    return size / (directions * smoothing) * total


def fedzo(clients, first, *, rounds, seed, rate, epochs, batch, **estimated):
    """The shared model after the last round."""
    shared = first
    for turn in range(1, rounds + 1):
        models = []
        for name, samples in clients.items():
            rng = np.random.default_rng(entropy(seed, name, turn + 1))
            model = shared
            for _ in range(epochs):
                for some in shuffled(samples, batch, rng):
                    step = rate * estimate(model, some, rng, **estimated)
                    model = like(model, flat(model) - step)
            models.append(model)
        shared = averaged(models, [len(samples) for samples in clients.values()])
    return shared


def pfedzo_client(name, samples, shared, turn, *, seed, rate, epochs, batch, strength, **rest):
    """The local and the personal model of one client after a round."""
    inner, estimated = rest.pop("inner_steps"), rest
    rng = np.random.default_rng(entropy(seed, name, turn + 1))
    local, personal = flat(shared), flat(shared)
    for _ in range(epochs):
        for some in shuffled(samples, batch, rng):
            for _ in range(inner):
                slope = estimate(like(shared, personal), some, rng, **estimated)
                personal = personal - rate * (slope + strength * (personal - local))
            local = local - rate * strength * (local - personal)
    return local, personal


def pfedzo(clients, first, *, rounds, **settings):
    """The shared model and the personal ones after the last round."""
    shared, personal = first, {}
    for turn in range(1, rounds + 1):
        done = {
            name: pfedzo_client(name, samples, shared, turn, **settings)
            for name, samples in clients.items()
        }
        personal = {name: own for name, (_, own) in done.items()}
        sizes = [len(clients[name]) for name in done]
        shared = averaged([like(shared, local) for local, _ in done.values()], sizes)
    return shared, personal


def baffle(clients, first, *, rounds, rate, directions, smoothing, seed):
    """The shared model after the last round; directions come from seed, training and round."""
    shared = first
    samples = sum(len(own) for own in clients.values())
    for turn in range(rounds):
        rng = np.random.default_rng([seed, 0, turn])
        drawn = [rng.standard_normal(len(flat(shared))) for _ in range(directions)]
        gradient = np.zeros_like(drawn[0])
        for delta in drawn:
            moved = like(shared, flat(shared) + smoothing * delta)
            difference = sum(
                len(own) / samples * (mean_loss(moved, own) - mean_loss(shared, own))
                for own in clients.values()
            )
            gradient += difference / smoothing * delta / directions
        shared = like(shared, flat(shared) - rate * gradient)
    return shared
